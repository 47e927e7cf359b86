import subprocess
import sys
from pathlib import Path

import pytest

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
    command = [sys.executable, "-m", "tf_libra.background_jobs.repeat", f"mine:{function}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == status
    assert done.stdout.splitlines() == [f"call {i + 1}" for i in range(calls)]
    assert said in done.stderr
