"""Benchmarks that are run one after the other, each a program that writes JSON."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def measured(program: str, command: Sequence[str], written: Path) -> dict[str, Any] | None:
    """Runs a benchmark and returns its document; prints a line and returns None if it fails.

    Args:
        program: name of the caller, for the printed lines.
        command: the benchmark; `--json` is added to it.
        written: path of the document.
    """
    print(f"{program}: {shlex.join(command[1:])}", file=sys.stderr, flush=True)
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    done = subprocess.run([*command, f"--json={written}"], env=environment)
    if done.returncode != 0:
        print(f"{program}: failed with status {done.returncode}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(written.read_text())
    return found
