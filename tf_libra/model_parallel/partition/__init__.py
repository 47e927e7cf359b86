"""Partition of a step into stages: their computation, messages and ranks."""
