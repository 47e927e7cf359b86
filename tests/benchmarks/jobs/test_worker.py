"""The core that a worker of a benchmark is pinned to."""

import json
import os

import pytest

from benchmarks.jobs import worker

OF_TENSORFLOW = json.dumps({"task": {"type": "worker", "index": 3}})


@pytest.mark.parametrize(
    ("said", "rank"),
    [
        ({"HOROVOD_LOCAL_RANK": "1"}, 1),
        ({"MPI_LOCALRANKID": "2"}, 2),  # by mpiexec of MPICH, as of --mpich on one host
        ({"TF_CONFIG": OF_TENSORFLOW}, 3),
    ],
)
def test_every_launcher_says_the_place_in_its_own_way(
    said: dict[str, str], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOROVOD_LOCAL_RANK", "MPI_LOCALRANKID", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert worker._local_rank() == rank


def test_workers_of_one_host_have_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4, 20)))
    taken = [worker._cores(rank, 4) for rank in range(4)]
    assert [len(cores) for cores in taken] == [4] * 4
    assert set().union(*taken) == set(range(4, 20))
    # On a host of its own a worker has all of them, whatever its rank.
    assert worker._cores(1, 16) == set(range(4, 20))
