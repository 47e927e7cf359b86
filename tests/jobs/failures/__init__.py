"""Failures on two workers, a module per topic; `failure_cases.py` runs them."""
