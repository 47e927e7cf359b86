"""Tests that need PyTorch are collected in the environment of `make gpu-test`, which has it."""

import importlib.util

collect_ignore = (
    ["test_dry_run.py", "test_models.py"] if importlib.util.find_spec("torch") is None else []
)
