"""Planners of pipelines and bursts: pure functions of measured layers and links."""
