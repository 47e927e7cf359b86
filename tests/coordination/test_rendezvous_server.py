"""Failures at the rendezvous reach every rank, although rank 0 ends with its server."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.rendezvous_env import free_addresses
from tf_libra.coordination import launched_job, rendezvous_server
from tf_libra.coordination.launched_job import LaunchedJob
from tf_libra.coordination.launcher_environment import LauncherEnvironment
from tf_libra.coordination.launcher_variables import split_address

SECONDS = 60.0
# Without TensorFlow: processes that meet, and print their error.
SCRIPT = f"""
from tf_libra.coordination.launched_job import LaunchedJob
from tf_libra.coordination.launcher_environment import detect
try:
    LaunchedJob(detect()).world({SECONDS})
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([(0, 3), (1, 3), (1, 3)], "two processes are rank 1"),
        ([(0, 3), (1, 4)], "the world size is 3 on rank 0 and 4 on rank 1"),
    ],
)
def test_processes_get_one_error(ranks: list[tuple[int, int]], text: str) -> None:
    host, port = split_address(free_addresses(1)[0], "a free address")
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": str(size), "TF_LIBRA_LAUNCHER": "torchrun"}
            | {"MASTER_ADDR": host, "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, size in ranks
    ]
    errors = [worker.communicate(timeout=2 * SECONDS)[0] for worker in workers]
    assert [error.startswith(f"ValueError {text}") for error in errors] == [True] * len(workers)


def test_rank_0_gets_the_error_after_the_rank_that_comes_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendezvous_server, "GRACE_SECONDS", SECONDS)
    host, port = split_address(free_addresses(1)[0], "a free address")
    place = LauncherEnvironment("torchrun", 0, 3, None, None, host, port, 1, "this job")

    def error(number: int, **changes: Any) -> Any:
        with pytest.raises(ValueError, match="two processes are rank 1") as raised:
            LaunchedJob(replace(place, rank=number, **changes)).world(SECONDS)
        return raised.value

    try:
        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(error, 0)
            launched_job._rendezvous_link(replace(place, rank=1)).client(SECONDS)
            others = [pool.submit(error, 1), pool.submit(error, 1, local_rank=1)]
            assert all(other.result(SECONDS) for other in others)
            assert not first.done()
            assert error(2) and first.result(SECONDS)
    finally:
        for link in launched_job._rendezvous_links().values():
            link.close()
        launched_job._rendezvous_links().clear()
