"""Execution of one rank's part of a step in stages."""
