"""Timelines and plans as text and figures."""
