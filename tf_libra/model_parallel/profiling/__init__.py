"""Measurements of layers, links and steps that pipeline and burst planners need."""
