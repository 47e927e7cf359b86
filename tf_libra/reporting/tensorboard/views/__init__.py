"""Views of a run's records as JSON values, for the tab and for reports.

Pure functions, one module per view. Units are seconds and bytes; tensors and groups are in backward
order. A value without a measurement is None.
"""
