"""Patterns of training scripts, a module per topic; `scripts.py` runs them."""
