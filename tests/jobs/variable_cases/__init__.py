"""Variables that workers compare and copy, a module per topic; `variables.py` runs them."""
