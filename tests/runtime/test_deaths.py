"""A rank that is lost or late: no rank hangs, and every rank reports what has happened."""

import os
import re
import signal

import pytest

from tests.runtime.death_jobs import (
    DEADLINE_SECONDS,
    GONE,
    LAST,
    WORLD_SIZE,
    Die,
    check_survivors,
    document_of,
    incident,
    with_wide,
)
from tests.worker_processes import Job, wait_for_output
from tf_libra.specs.plan import Plan

SURVIVORS = tuple(range(LAST))
STALLED = "step 4; still waiting"
# Of a process that ends between steps.
WORDS = {
    "exit": "its program has ended, where every rank must take equally many steps",
    "fail": "its program has ended with an error: LookupError: no such file of images",
}
OVER_TCP = {"TF_LIBRA_INTERFACE": "lo"}
BY_HOROVOD = {"TF_LIBRA_JOB_ENGINE": "horovod"}


@pytest.mark.parametrize(
    ("how", "step"),
    [
        ("kill", 4),
        ("kill-reduce", None),
        ("kill-tuning", 4),
        ("kill-tracing", None),
        ("exit", 4),
        ("fail", 4),
    ],
)
def test_others_raise_when_a_rank_is_gone(die: Die, how: str, step: int | None) -> None:
    with die(how) as workers:
        try:
            workers.wait(DEADLINE_SECONDS)
        finally:
            if how == "kill":
                # The process that it had forked was alive all the time, and the test has to end it.
                os.kill(incident(workers.folder)["child"], signal.SIGKILL)
        job = workers.job()
    assert job.returncodes[LAST] == {"exit": 0, "fail": 1}.get(how, -signal.SIGKILL)
    check_survivors(job, step)
    for rank in SURVIVORS:
        document = document_of(job, rank)
        # Lanes do not wait for what follows them, so the step may be through elsewhere.
        done = {"kill-tracing": (0,), "kill-reduce": (3, 4)}
        assert document["done"] in done.get(how, (3,))
        if how not in WORDS:
            assert document["times"][0] - incident(job.folder)["time"] < 60
        if how in ("kill", "kill-reduce"):
            assert re.search(r"group \d \(\w+, \w+\) of plan [0-9a-f]+", document["errors"][0])
    errors = [document_of(job, rank)["errors"][0] for rank in SURVIVORS]
    assert GONE.search("".join(errors))
    if how in WORDS:
        assert any(WORDS[how] in error for error in errors)


def test_variable_of_a_sparse_gradient_stays_whole(die: Die, three_groups: Plan) -> None:
    """A rank dies while zero blocks are left out of what it sends."""
    with die("kill-sparse", plan=with_wide(three_groups), env=OVER_TCP) as workers:
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    assert job.returncodes[LAST] == -signal.SIGKILL
    check_survivors(job, None)
    for rank in SURVIVORS:
        document = document_of(job, rank)
        assert document["done"] in (3, 4)
        assert document["whole"]
        assert document["times"][0] - incident(job.folder)["time"] < 60


def test_process_ends_whose_engine_cannot_be_closed(die: Die) -> None:
    """Its thread runs what follows an all-reduce, for far longer than a test may take."""
    with die("stuck") as workers:
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    assert job.returncodes[LAST] in (0, 1), job.output(LAST)
    output = job.output(LAST)
    assert "all-reduce" in output and "has not returned for 20 s" in output
    check_survivors(job, None)


@pytest.mark.parametrize(
    ("how", "lost"), [("kill-connecting", LAST), ("kill-connecting-0", 0), ("kill-growing", LAST)]
)
@pytest.mark.parametrize("env", [{}, OVER_TCP], ids=["unix", "tcp"])
def test_rank_that_dies_before_it_connects_is_noticed(
    die: Die, how: str, lost: int, env: dict[str, str]
) -> None:
    """The others know where it listens, and no rank has a connection to it."""
    with die(how, env=env) as workers:
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    assert job.returncodes[lost] == -signal.SIGKILL
    check_survivors(job, None, lost)
    for rank in {0, 1, 2} - {lost}:
        assert document_of(job, rank)["done"] == 0
        # Two looks, a second each, and what a loaded machine adds.
        assert document_of(job, rank)["times"][0] - incident(job.folder, lost)["time"] < 30


def test_interpreter_that_ends_in_mid_step_ends(die: Die) -> None:
    with die("leave") as workers:
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    assert job.returncodes[LAST] in (0, 1), job.output(LAST)  # by itself, and no core dump
    check_survivors(job, 4)


def test_interrupted_rank_ends_and_so_do_the_others(die: Die) -> None:
    with die("interrupt") as workers:
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    assert job.returncodes[LAST] == -signal.SIGINT, job.output(LAST)
    assert "KeyboardInterrupt" in job.output(LAST)
    check_survivors(job, None)


def test_rank_is_interrupted_while_it_waits_for_another(die: Die) -> None:
    """Long before it would give up the rank that is stopped."""
    with die("wait") as workers:
        for rank in SURVIVORS:
            wait_for_output(workers, rank, STALLED, DEADLINE_SECONDS)
        os.kill(workers.processes[0].pid, signal.SIGINT)
        workers.wait(DEADLINE_SECONDS, ranks=SURVIVORS)
        os.kill(incident(workers.folder)["pid"], signal.SIGCONT)
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    assert job.returncodes[0] == -signal.SIGINT, job.output(0)
    assert "KeyboardInterrupt" in job.output(0)
    check_survivors(job, None, lost=0)
    for rank in (1, LAST):
        assert "rank 0 gave up" in document_of(job, rank)["errors"][0]


def test_other_ranks_receive_the_error(die: Die) -> None:
    with die("raise") as workers:
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    check_survivors(job, 4)
    for rank in SURVIVORS:
        for message in document_of(job, rank)["errors"]:
            assert f"rank {LAST} gave up" in message
            assert "the image cannot be decoded" in message
    # Its own later calls repeat it, too.
    for message in document_of(job, LAST)["errors"]:
        assert "the image cannot be decoded" in message
        assert not message.startswith("HorovodInternalError: rank")


def test_stopped_rank_is_dropped(die: Die) -> None:
    with die("stop") as workers:
        workers.wait(DEADLINE_SECONDS, ranks=SURVIVORS)
        os.kill(incident(workers.folder)["pid"], signal.SIGCONT)
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    check_survivors(job, 4)
    assert any(
        f"waited 15 s for rank(s) {LAST}" in document_of(job, r)["errors"][0] for r in SURVIVORS
    )
    # It logs the same, once it goes on.
    assert "gave up" in document_of(job, LAST)["errors"][0]


def test_late_rank_is_warned_about_and_waited_for(die: Die) -> None:
    with die("late") as workers:
        for rank in SURVIVORS:
            wait_for_output(workers, rank, STALLED, DEADLINE_SECONDS)
        os.kill(incident(workers.folder)["pid"], signal.SIGCONT)
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    assert job.returncodes == (0,) * WORLD_SIZE
    for rank in range(WORLD_SIZE):
        assert document_of(job, rank) == {"done": 7, "errors": [], "times": [], "phase": "run"}
    for rank in SURVIVORS:
        # On a busy machine others may have been late as well, and at other steps.
        warnings = [line for line in job.output(rank).splitlines() if STALLED in line]
        assert any(
            re.search(rf"rank {rank} has waited [\d.]+ s for rank\(s\) (\d, )*{LAST} in group 0", w)
            for w in warnings
        )
        assert not any("waited 0 s" in warning for warning in warnings)


@pytest.mark.parametrize("engine", ["lanes", "horovod"])
def test_error_on_one_rank_before_the_rendezvous_reaches_the_others(die: Die, engine: str) -> None:
    with die("rejected", env={"TF_LIBRA_JOB_ENGINE": engine}) as workers:
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    named = "TF_LIBRA_PORTS must be a port" if engine == "lanes" else "NCCL_NTHREADS"
    for message in document_of(job, LAST)["errors"]:
        assert message.startswith("ValueError: ") and named in message
    for rank in SURVIVORS:
        for message in document_of(job, rank)["errors"]:
            assert message.startswith(f"HorovodInternalError: rank {LAST} gave up before the ranks")
            assert named in message


# Horovod alone, without lanes.


@pytest.mark.parametrize(
    "how", ["kill", "kill-reduce", "kill-tuning", "kill-tracing", "exit", "fail"]
)
def test_without_lanes_others_raise_when_a_rank_is_gone(die: Die, how: str) -> None:
    with die(how, env=BY_HOROVOD) as workers:
        workers.wait(DEADLINE_SECONDS, ranks=SURVIVORS)
        if how == "kill":
            os.kill(incident(workers.folder)["child"], signal.SIGKILL)
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    check_told_by_horovod(job, SURVIVORS)
    if how in WORDS:
        for rank in SURVIVORS:
            assert WORDS[how] in document_of(job, rank)["errors"][0]


@pytest.mark.parametrize(
    ("how", "why"),
    [("raise", "the image cannot be decoded"), ("interrupt", "KeyboardInterrupt")],
)
def test_ranks_without_lanes_receive_the_reason_of_an_abort(die: Die, how: str, why: str) -> None:
    """While they wait for it in all-reduces of Horovod's own."""
    with die(how, env=BY_HOROVOD) as workers:
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    check_told_by_horovod(job, SURVIVORS)
    for rank in SURVIVORS:
        first = document_of(job, rank)["errors"][0]
        assert f"rank {LAST} gave up: " in first
        assert why in first


def test_stopped_rank_is_dropped_without_lanes(die: Die) -> None:
    with die("stop", env=BY_HOROVOD) as workers:
        workers.wait(DEADLINE_SECONDS, ranks=SURVIVORS)
        os.kill(incident(workers.folder)["pid"], signal.SIGCONT)
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    check_told_by_horovod(job, SURVIVORS)


def check_told_by_horovod(job: Job, ranks: tuple[int, ...]) -> None:
    """The ranks end with an exception that elastic mode recovers from, and repeat it."""
    for rank in ranks:
        assert job.returncodes[rank] == 1, job.output(rank)
        first, again = document_of(job, rank)["errors"]
        assert first.startswith("HorovodInternalError: ")
        assert again.startswith("HorovodInternalError: ")
        assert again.removeprefix("HorovodInternalError: ").partition("; step")[0] in first
