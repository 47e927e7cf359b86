"""Partition of a step into stages: computation, messages and update of each rank."""
