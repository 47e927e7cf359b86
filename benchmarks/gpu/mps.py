"""NVIDIA's multi-process service: kernels of two ranks on one GPU at once, half of it each.

Without it the GPU gives its time to one process after the other, so that one rank's all-reduce and
another's computation never meet.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_PROBE = "import torch; torch.ones(1, device='cuda').sum().item()"
_FOLDERS = ("/usr/local/nvidia/bin", "/usr/bin", "/usr/local/cuda/bin")


@contextlib.contextmanager
def service(folder: Path, probe_seconds: float) -> Iterator[dict[str, str]]:
    """Runs the service for as long as the context is open, in a folder of its own.

    Yields:
      The environment that a process needs to be its client; empty where the service cannot be had.
    """
    control = shutil.which("nvidia-cuda-mps-control") or shutil.which(
        "nvidia-cuda-mps-control", path=os.pathsep.join(_FOLDERS)
    )
    if control is None:
        yield {}
        return
    client = {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }
    for path in client.values():
        Path(path).mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **client}
    started = subprocess.run([control, "-d"], env=environment, capture_output=True, timeout=30)
    try:
        works = started.returncode == 0 and _works(environment, probe_seconds)
        yield client if works else {}
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [control], input=b"quit\n", env=environment, capture_output=True, timeout=30
            )


def _works(environment: dict[str, str], seconds: float) -> bool:
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE], env=environment, capture_output=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return False
    return probe.returncode == 0
