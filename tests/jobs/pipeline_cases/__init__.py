"""Pipelines on several workers, a module per topic; `pipelines.py` runs them."""
