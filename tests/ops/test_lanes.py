"""The C++ tests of `ops/lanes`, which need no TensorFlow, each as one test."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(path.stem for path in (ROOT / "ops" / "lanes").glob("*_test.cc"))


@pytest.fixture(scope="session")
def built_programs() -> Path:
    """Builds all of them as `make cc-test` does, and returns their folder."""
    # This suite may itself run under make, whose job server is not ours to use.
    env = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    subprocess.run(["make", "-j2", "cc-tests"], cwd=ROOT, env=env, check=True)
    return ROOT / "build" / "cc" / "plain"


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_passes(built_programs: Path, program: str) -> None:
    done = subprocess.run([built_programs / program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
