"""Loss of a rank in the middle of a pipelined step: the others raise, and name it."""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.forkserver import Nursery
from tests.worker_processes import Job, Workers, running_workers, wait_until

WORLD_SIZE = 3
LAST = WORLD_SIZE - 1
SURVIVORS = tuple(range(LAST))
DEADLINE_SECONDS = 150.0
# The time for which an ending process waits for stopped ranks.
ENVIRONMENT = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "10"}


@pytest.fixture
def die(nursery: Nursery, tmp_path: Path) -> Callable[..., Any]:
    """Returns a context manager that runs the job `jobs/pipeline_deaths.py`."""

    @contextmanager
    def start(how: str) -> Iterator[Workers]:
        arguments = ("pipeline_deaths.py", WORLD_SIZE, tmp_path, how)
        with running_workers(*arguments, env=ENVIRONMENT, nursery=nursery) as workers:
            yield workers

    return start


def report(job: Job, rank: int) -> dict[str, Any]:
    return dict(json.loads((job.folder / f"deaths.{rank}.json").read_text()))


def incident(folder: Path) -> dict[str, Any]:
    path = folder / f"incident.{LAST}.json"
    wait_until(path.exists, DEADLINE_SECONDS)
    return dict(json.loads(path.read_text()))


def check_survivors(job: Job) -> None:
    """Survivors raise an error that elastic mode recovers from, and repeat its cause."""
    for rank in SURVIVORS:
        assert job.returncodes[rank] == 1, job.output(rank)
        document = report(job, rank)
        assert document["done"] == 3
        first, again = document["errors"]
        assert first.startswith("HorovodInternalError: ")
        assert f"rank {rank}" in first and "step 4 was not completed" in first
        assert again.startswith("HorovodInternalError: ")
        cause = re.search(rf"rank {rank}.*?(?=; step)", first, re.DOTALL)
        assert cause is not None and cause.group() in again
    named = re.compile(rf"rank(\(s\))? {LAST}")
    assert any(named.search(report(job, rank)["errors"][0]) for rank in SURVIVORS)


def test_survivors_of_a_killed_rank_raise(die: Callable[..., Any]) -> None:
    with die("kill") as workers:
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    assert job.returncodes[LAST] == -signal.SIGKILL
    check_survivors(job)
    for rank in SURVIVORS:
        assert report(job, rank)["times"][0] - incident(job.folder)["time"] < 60


def test_survivors_of_a_stopped_rank_raise_at_the_deadline(die: Callable[..., Any]) -> None:
    """The error names the waiting rank, its peer, the time and the direction."""
    with die("stop") as workers:
        workers.wait(DEADLINE_SECONDS, ranks=SURVIVORS)
        os.kill(incident(workers.folder)["pid"], signal.SIGCONT)
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    check_survivors(job)
    first = [report(job, rank)["errors"][0] for rank in SURVIVORS]
    waited = re.compile(rf"rank \d.* waited 15 s for rank {LAST} to (send|receive) ")
    assert any(waited.search(message) for message in first), first
    for rank in SURVIVORS:
        assert report(job, rank)["times"][0] - incident(job.folder)["time"] < 60
    # The stopped rank raises, too, once it continues.
    assert "gave up" in report(job, LAST)["errors"][0]


def test_error_of_a_stage_is_raised_on_all_ranks(die: Callable[..., Any]) -> None:
    with die("raise") as workers:
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    check_survivors(job)
    for rank in SURVIVORS:
        for message in report(job, rank)["errors"]:
            assert f"rank {LAST} gave up" in message
            assert "the image cannot be decoded" in message
