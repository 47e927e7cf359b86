"""Benchmarks that are run one after the other, each a program that writes JSON."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# A benchmark that is ended removes its network namespaces and its workers.
_GRACE_SECONDS = 15.0


def measured(
    program: str, command: Sequence[str], written: Path, timeout_seconds: float | None = None
) -> dict[str, Any] | None:
    """Runs a benchmark and returns its document; prints a line and returns None if it fails.

    Args:
        program: name of the caller, for the printed lines.
        command: the benchmark; `--json` is added to it.
        written: path of the document.
        timeout_seconds: after which the benchmark is ended; None: never.
    """
    print(f"{program}: {shlex.join(command[1:])}", file=sys.stderr, flush=True)
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    process = subprocess.Popen(
        [*command, f"--json={written}"],
        env=environment,
        start_new_session=timeout_seconds is not None,
    )
    try:
        status = process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        print(f"{program}: ended after {timeout_seconds:.0f} s", file=sys.stderr)
        return None
    except BaseException:
        _end(process) if timeout_seconds is not None else process.kill()
        raise
    if status != 0:
        print(f"{program}: failed with status {status}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(written.read_text())
    return found


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a benchmark and its launcher, which are the processes of its session."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
