"""Pipelines and bursts: planners, simulation, capture, partition, execution, reports, commands."""
