"""Benchmarks that another program runs."""

import json
import sys
import time
from pathlib import Path

from benchmarks.measuring import measured

# Its argument is --json=FILE.
WRITES = "import sys; open(sys.argv[1].removeprefix('--json='), 'w').write('{\"a\": 1}')"


def test_document_of_a_benchmark_is_returned(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITES]
    assert measured("test", command, tmp_path / "out.json", 600.0) == {"a": 1}
    assert json.loads((tmp_path / "out.json").read_text()) == {"a": 1}
    assert measured("test", [sys.executable, "-c", "exit(3)"], tmp_path / "out.json") is None


def test_benchmark_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    script = f"sleep 3600 & echo $! > {tmp_path}/pid; wait"
    assert measured("test", ["sh", "-c", script], tmp_path / "out.json", 5.0) is None
    pid = (tmp_path / "pid").read_text().strip()
    stat = Path(f"/proc/{pid}/stat")

    def is_running() -> bool:
        # An ended child is gone, or a zombie of the process that adopted it.
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"

    deadline = time.monotonic() + 60  # a child ends when it has its turn on a core
    while is_running():
        assert time.monotonic() < deadline
        time.sleep(0.01)
