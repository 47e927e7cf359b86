"""The comparison of connecting under TF-Libra's rendezvous and under Horovod's."""

import json
from pathlib import Path

from benchmarks import connecting
from tests.forkserver import Nursery
from tests.worker_processes import DEADLINE_SECONDS, ROOT, worker_environment


def test_real_ranks_connect_under_every_method(nursery: Nursery, tmp_path: Path) -> None:
    written, output = tmp_path / "found.json", tmp_path / "output.txt"
    args = ("--ranks=2", "--rounds=1", f"--json={written}")
    program = ROOT / "benchmarks" / "connecting.py"
    child = nursery.fork(program, args, worker_environment(), output)
    assert child.wait(DEADLINE_SECONDS) == 0, output.read_text()
    found = json.loads(written.read_text())["seconds"]["2"]
    assert set(found) == set(connecting.METHODS)
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in found.values())


def test_ratios_are_within_rounds() -> None:
    seconds = {8: {connecting.HOROVOD: [2.0, 8.0, 4.0], "lanes": [1.0, 2.0, 3.0]}}
    assert connecting.rows(seconds) == [["8", "4.00", "2.00", "0.50"]]
