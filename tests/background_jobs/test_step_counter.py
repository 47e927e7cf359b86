"""The number of steps that a background job has made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tf_libra.background_jobs.step_counter import COUNT_VARIABLE, StepCount, counter


def test_steps_are_counted_across_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    count = StepCount()
    assert count.read() is None
    monkeypatch.setenv(COUNT_VARIABLE, str(count.path))
    code = (
        "from tf_libra.background_jobs.step_counter import counter; step = counter(); step();"
        " step()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert count.read() == 2
    count.end()
    assert not count.path.exists()
    assert count.read() == 2


def test_calls_of_a_function_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the one that says it was the last."""
    (tmp_path / "some.py").write_text(
        "left = [1, 2, 3]\ndef once(): return bool(left and left.pop())"
    )
    count = StepCount()
    monkeypatch.setenv(COUNT_VARIABLE, str(count.path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    command = [sys.executable, "-m", "tf_libra.background_jobs.step_counter", "some:once"]
    subprocess.run(command, check=True)
    assert count.read() == 3
    count.end()


@pytest.mark.parametrize("content", [None, b"", b"abc"])
def test_without_a_file_to_count_in_nothing_is_counted(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "count"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(COUNT_VARIABLE, str(path))
    counter()()
    monkeypatch.delenv(COUNT_VARIABLE)
    counter()()
    assert (path.read_bytes() if path.exists() else None) == content


COUNT = """
count = 0

def thrice():
    global count
    count += 1
    print("call", count, flush=True)
    return count < 3

def fails():
    raise RuntimeError("no more")
"""


@pytest.mark.parametrize(
    ("function", "status", "calls", "said"), [("thrice", 0, 3, ""), ("fails", 1, 0, "no more")]
)
def test_until_it_returns_false_or_raises(
    tmp_path: Path, function: str, status: int, calls: int, said: str
) -> None:
    (tmp_path / "mine.py").write_text(COUNT)
    command = [sys.executable, "-m", "tf_libra.background_jobs.step_counter", f"mine:{function}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == status
    assert done.stdout.splitlines() == [f"call {i + 1}" for i in range(calls)]
    assert said in done.stderr
