"""Scripts written for Horovod, a module per topic; `horovod_scripts.py` runs them."""
