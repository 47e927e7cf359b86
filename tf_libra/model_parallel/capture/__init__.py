"""Traces of a training step, with its layers and the classification of its ops."""
