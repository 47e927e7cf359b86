"""Decides on rank 0 how a step is laid out over the ranks, from what was measured."""
