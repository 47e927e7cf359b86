"""The C++ tests that need TensorFlow's libraries but no Python, those of each file as one test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("ops", "passes")
FILES = sorted(
    f"{folder}/{path.name}" for folder in FOLDERS for path in (ROOT / folder).glob("*_test.cc")
)


@pytest.fixture(scope="session")
def built_programs() -> dict[str, Path]:
    """Builds a program per folder as `make cc-test` does, and returns their paths by folder."""
    env = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    command = [sys.executable, "setup.py", "--quiet", "cc_tests"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    paths = [ROOT / line for line in done.stdout.splitlines() if line.endswith("_test")]
    return {path.name.removesuffix("_test"): path for path in paths}


@pytest.mark.parametrize("file", FILES)
def test_tests_of_a_file_pass(built_programs: dict[str, Path], file: str) -> None:
    program = built_programs[file.partition("/")[0]]
    command = [program, f"--source-file=*{file}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert output.count("\nok ") + output.startswith("ok "), f"no test of {file} ran:\n{output}"
