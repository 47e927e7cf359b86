"""What needs PyTorch is collected where PyTorch is: in the environment of `make gpu-test`."""

import importlib.util

collect_ignore = (
    ["test_dry_run.py", "test_models.py"] if importlib.util.find_spec("torch") is None else []
)
