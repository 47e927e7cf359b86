"""Runs a training step as a pipeline: its trace is cut into stages, and each rank runs one."""
