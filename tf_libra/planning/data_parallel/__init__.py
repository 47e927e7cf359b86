"""Planners of data-parallel training: which gradients are fused, by how many threads."""
