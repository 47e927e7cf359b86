"""NVIDIA's multi-process service: concurrent kernels of two ranks on one GPU, half of it each.

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
_CONTROL_SECONDS = 30.0
# Where drivers put it when it is not on the path.
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
    try:
        works = _said(control, "-d", environment) and _works(environment, probe_seconds)
        yield client if works else {}
    finally:
        _said(control, None, environment, b"quit\n")


def _said(
    control: str, flag: str | None, environment: dict[str, str], text: bytes | None = None
) -> bool:
    """Returns whether the control program accepted the command."""
    command = [control] if flag is None else [control, flag]
    try:
        # A daemon that kept a pipe open would block its reader for ever.
        done = subprocess.run(
            command,
            env=environment,
            input=text,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_CONTROL_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _works(environment: dict[str, str], seconds: float) -> bool:
    """Returns whether a process can use the GPU as a client."""
    probe = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(probe, env=environment, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
