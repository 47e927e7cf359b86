"""Data flow of a traced step: a plain copy of its graph, and forward and backward walks over it."""
