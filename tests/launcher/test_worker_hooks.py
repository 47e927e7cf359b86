"""The end of a worker under `tf-libra run`: its own process's part, without a launcher."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tf_libra.launcher import LAUNCHED_VARIABLE, TRACEBACK_VARIABLE

SCRIPT = """
import tf_libra

def train():
    tf_libra.BackwardProfile.from_arrays([1], [-1.0])

try:
    train()
except ValueError as error:
    raise RuntimeError("of my own") from error
"""


def run(tmp_path: Path, script: str, **environment: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, path], env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    return done.stderr


def test_tracebacks_have_the_frames_of_the_users_code_alone(tmp_path: Path) -> None:
    reported = run(tmp_path, SCRIPT, **{LAUNCHED_VARIABLE: "1"})
    assert "in train" in reported
    assert "compute_seconds" in reported
    assert reported.splitlines()[-1] == "RuntimeError: of my own"
    assert "specs/backward_profile.py" not in reported
    assert f"{TRACEBACK_VARIABLE}=full shows them" in reported


@pytest.mark.parametrize(
    "environment",
    [{}, {LAUNCHED_VARIABLE: "1", TRACEBACK_VARIABLE: "full"}],
    ids=["not launched", "full"],
)
def test_otherwise_they_are_pythons_own(tmp_path: Path, environment: dict[str, str]) -> None:
    assert "specs/backward_profile.py" in run(tmp_path, SCRIPT, **environment)


def test_error_without_library_frames_is_printed_as_by_python(tmp_path: Path) -> None:
    script = "import tf_libra\ndef f():\n    raise KeyError('mine')\nf()\n"
    assert run(tmp_path, script, **{LAUNCHED_VARIABLE: "1"}) == run(tmp_path, script)
