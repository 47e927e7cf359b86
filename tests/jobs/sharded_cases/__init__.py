"""Sharded updates, a module per topic; `sharded_updates.py` runs them."""
