"""A rank that is lost or late: nobody hangs, and everybody is told what has happened."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.launching import Job, Workers
from tf_libra.plan import Plan

WORLD_SIZE = 3
LAST = WORLD_SIZE - 1
SURVIVORS = tuple(range(LAST))
STALLED = "step 4; still waiting"
# Which of the two the system reports depends on what was still under way.
GONE = re.compile(r"(rank \d) (closed the connection|is gone)")
# Far below the 600 s after which a rank that says nothing is given up, far above what is needed.
DEADLINE_SECONDS = 150.0


@pytest.fixture
def die(
    start_workers: Callable[..., Any], tmp_path: Path, three_groups: Plan
) -> Callable[[str], Any]:
    """A context in which the job of `jobs/deaths.py` runs."""
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(replace(three_groups, num_workers=WORLD_SIZE).to_json())

    @contextmanager
    def start(how: str) -> Iterator[Workers]:
        # Stalls are warned about in TensorFlow's log. A process that ends waits for so long for
        # ranks that have stopped: Horovod's own farewell.
        env = {"TF_CPP_MIN_LOG_LEVEL": "1", "HOROVOD_GLOO_TIMEOUT_SECONDS": "10"}
        arguments = ("deaths.py", WORLD_SIZE, tmp_path, how, str(plan_file))
        with start_workers(*arguments, env=env) as workers:
            yield workers

    return start


def told(job: Job, rank: int) -> dict[str, Any]:
    return dict(json.loads((job.folder / f"deaths.{rank}.json").read_text()))


def wait_for_output(workers: Workers, rank: int, text: str) -> None:
    """Returns once a rank has printed `text`."""
    path = workers.folder / f"output.{rank}.txt"
    until = time.monotonic() + DEADLINE_SECONDS
    while text not in path.read_text(errors="replace"):
        assert time.monotonic() < until, path.read_text(errors="replace")[-4000:]
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["kill", "kill-tuning", "exit"])
def test_others_raise_when_a_rank_is_gone(die: Callable[[str], Any], how: str) -> None:
    with die(how) as workers:
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    assert job.returncodes[LAST] == (0 if how == "exit" else -signal.SIGKILL)
    for rank in SURVIVORS:
        # They end by themselves, by the exception.
        assert job.returncodes[rank] == 1, job.output(rank)
        document = told(job, rank)
        assert document["done"] == 3
        first, again = document["errors"]
        assert GONE.search(first)
        assert "step 4 was not completed" in first
        # The next call fails at once, with the first cause.
        cause = first[first.index(f"rank {rank}, ") : first.index("step 4 was not completed")]
        assert cause in again
    # A rank that first sees another survivor give up may not hear in time why it did.
    assert f"rank {LAST}" in {
        match.group(1) for r in SURVIVORS for match in GONE.finditer(told(job, r)["errors"][0])
    }


def test_others_are_told_what_was_raised(die: Callable[[str], Any]) -> None:
    with die("raise") as workers:
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    for rank in SURVIVORS:
        first, again = told(job, rank)["errors"]
        for message in (first, again):
            assert f"rank {LAST} gave up" in message
            assert "the image cannot be decoded" in message
            assert "step 4 was not completed" in message
    own = told(job, LAST)["errors"][0]
    assert "the image cannot be decoded" in own


def test_rank_that_stops_is_named_after_the_timeout(die: Callable[[str], Any]) -> None:
    with die("stop") as workers:
        workers.wait(DEADLINE_SECONDS, SURVIVORS)
        os.kill(workers.processes[LAST].pid, signal.SIGCONT)
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    for rank in SURVIVORS:
        first, again = told(job, rank)["errors"]
        for message in (first, again):
            assert f"rank {LAST}" in message or f"rank(s) {LAST}" in message
            assert "step 4 was not completed" in message
    # It is told as well, once it goes on.
    assert "gave up" in told(job, LAST)["errors"][0]


def test_late_rank_is_warned_about_and_waited_for(die: Callable[[str], Any]) -> None:
    with die("late") as workers:
        for rank in SURVIVORS:
            wait_for_output(workers, rank, STALLED)
        (workers.folder / "go-on").touch()
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    assert job.returncodes == (0,) * WORLD_SIZE
    for rank in range(WORLD_SIZE):
        assert told(job, rank) == {"done": 7, "errors": [], "phase": "run"}
    for rank in SURVIVORS:
        # On a busy machine others may have been late as well, and at other steps.
        warnings = [line for line in job.output(rank).splitlines() if STALLED in line]
        assert any(f"rank {rank} has waited" in warning for warning in warnings)
        assert any(re.search(rf"for rank\(s\) (\d, )*{LAST} in group 0", w) for w in warnings)
