"""The C++ tests that need TensorFlow's libraries but no Python, each as one test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("ops", "passes")
PROGRAMS = sorted(
    f"{folder}/{path.stem}" for folder in FOLDERS for path in (ROOT / folder).glob("*_test.cc")
)


@pytest.fixture(scope="session")
def built_programs() -> dict[str, Path]:
    """Builds all of them as `make cc-test` does, and returns where they are."""
    env = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    command = [sys.executable, "setup.py", "--quiet", "cc_tests"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    paths = [ROOT / line for line in done.stdout.splitlines() if line.endswith("_test")]
    return {f"{path.parent.name}/{path.name}": path for path in paths}


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_passes(built_programs: dict[str, Path], program: str) -> None:
    done = subprocess.run([built_programs[program]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
