"""Capture of a step during tracing: patches and the registry of gradients."""
