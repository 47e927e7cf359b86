"""Capture of a step while it is traced: patches, and gradients that are marked."""
