"""Hardware and software of a run, as the device and the libraries themselves report it."""

import os
import platform
import subprocess
from typing import Any

import numpy as np
import scipy
import torch


def environment(*, dry_run: bool, sharing: str, placement: str) -> dict[str, Any]:
    """Device, driver and versions; a dry run has no device to name.

    Args:
      dry_run: whether the processor stands in for a GPU.
      sharing: "mps" or "time slices", how two ranks share the GPU.
      placement: "multi-rank" or "host ids", by which NCCL accepts two ranks on one GPU.
    """
    common = {
        "pytorch": torch.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
    }
    if dry_run:
        return {"device": None, **common}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "sharing": sharing,
        "placement": placement,
        "nccl_environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith("NCCL_")},
        **common,
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"unknown ({error})"
