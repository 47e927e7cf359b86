"""Helpers of all other packages, which are no public API."""
