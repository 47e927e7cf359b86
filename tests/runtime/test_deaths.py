"""A rank that is lost or late: no rank hangs, and every rank reports what has happened."""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import Cluster, burst_bytes
from tests.forkserver import Nursery
from tests.worker_processes import Job, Workers, running_workers, wait_for_output, wait_until
from tf_libra.specs.plan import Plan, TensorGroup

WORLD_SIZE = 3
LAST = WORLD_SIZE - 1
SURVIVORS = tuple(range(LAST))
STALLED = "step 4; still waiting"
# Which of the two the system reports depends on what was still under way.
GONE = re.compile(r"(rank \d) (closed the connection|is gone)")
# Far below the 600 s after which a rank that says nothing is given up, far above what is needed.
DEADLINE_SECONDS = 150.0
# Of a process that ends between steps.
WORDS = {
    "exit": "its program has ended, where every rank must take equally many steps",
    "fail": "its program has ended with an error: LookupError: no such file of images",
}
# A process that ends waits for so long for ranks that have stopped: Horovod's own abort message.
FAREWELL = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "10"}

# On hosts of their own.
LANES_PORT = "20000"

OVER_TCP = {"TF_LIBRA_INTERFACE": "lo"}
BY_HOROVOD = {"TF_LIBRA_JOB_ENGINE": "horovod"}

# Of the gradient that a slow network is given: float32, 12 rows.
WIDE_BYTES = 4 * 12 * (1 << 16)

Die = Callable[..., Any]


def with_wide(plan: Plan) -> Plan:
    """Returns the plan with a long gradient more, in a group of its own."""
    return replace(
        plan,
        groups=(*plan.groups, TensorGroup(6, 7, 1)),
        tensor_names=(*plan.tensor_names, "wide"),
        num_bytes=(*plan.num_bytes, WIDE_BYTES),
        dtypes=("float32",) * 7,
    )


@pytest.fixture
def die(nursery: Nursery, tmp_path: Path, three_groups: Plan) -> Die:
    """A context in which the job of `jobs/deaths.py` runs, in a cluster if there is one."""

    @contextmanager
    def start(
        how: str,
        cluster: Cluster | None = None,
        plan: Plan = three_groups,
        env: dict[str, str] | None = None,
    ) -> Iterator[Workers]:
        world_size = WORLD_SIZE if cluster is None else len(cluster.hosts)
        plan_file = tmp_path / "plan.json"
        plan_file.write_text(replace(plan, num_workers=world_size).to_json())
        arguments = ("deaths.py", world_size, tmp_path, how, str(plan_file))
        env = FAREWELL | (env or {})
        with running_workers(*arguments, env=env, nursery=nursery, cluster=cluster) as workers:
            yield workers

    return start


def document_of(job: Job, rank: int) -> dict[str, Any]:
    path = job.folder / f"deaths.{rank}.json"
    assert path.exists(), f"rank {rank} ended by {job.returncodes[rank]}: {job.output(rank)}"
    return dict(json.loads(path.read_text()))


def incident(folder: Path, rank: int = LAST) -> dict[str, Any]:
    path = folder / f"incident.{rank}.json"
    wait_until(path.exists, DEADLINE_SECONDS)
    return dict(json.loads(path.read_text()))


def check_survivors(job: Job, step: int | None, lost: int = LAST) -> None:
    """The survivors end with an exception that names the lost rank, and repeat it."""
    survivors = [rank for rank in range(job.world_size) if rank != lost]
    for rank in survivors:
        assert job.returncodes[rank] == 1, job.output(rank)
        first, again = document_of(job, rank)["errors"]
        assert first.startswith("HorovodInternalError: ")
        assert f"rank {rank}, " in first
        if step is not None:
            assert f"step {step} was not completed" in first
        # The next call fails immediately, with the first cause.
        cause = re.search(rf"rank {rank}, .*", first)
        assert cause is not None
        assert cause.group() in again
    # A rank that first sees another survivor give up may not hear in time why it did.
    named = re.compile(rf"rank(\(s\))? {lost}")
    assert any(named.search(document_of(job, rank)["errors"][0]) for rank in survivors)


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


# What happens to networks.


def test_cable_that_is_pulled_is_noticed(die: Die, make_cluster: Callable[..., Cluster]) -> None:
    """With data under way, which TCP alone sends again and again for a quarter of an hour."""
    with make_cluster(2) as cluster, die("cut", cluster) as workers:
        incident(tmp := workers.folder, rank=1)
        cluster.cut(cluster.hosts[1])
        (tmp / "go-on").touch()
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    for rank in (0, 1):
        first = document_of(job, rank)["errors"][0]
        assert f"rank {1 - rank} is gone: " in first
        assert "step 4 was not completed" in first


def test_half_open_connection_is_noticed(die: Die, make_cluster: Callable[..., Cluster]) -> None:
    """The host of a rank is lost and comes back, without knowing of any connection."""
    with make_cluster(2) as cluster, die("cut", cluster) as workers:
        pid = incident(workers.folder, rank=1)["pid"]
        cluster.cut(cluster.hosts[1])
        cluster.reset(cluster.hosts[1])
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        cluster.mend(cluster.hosts[1])
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    check_survivors(job, 4, lost=1)


def test_slow_network_is_waited_for(
    die: Die, make_cluster: Callable[..., Cluster], three_groups: Plan
) -> None:
    """Every step sends megabytes, so that each of them must take as long as the links need."""
    plan = with_wide(three_groups)
    with make_cluster(2, "100mbit") as cluster, die("slow", cluster, plan) as workers:
        incident(workers.folder, rank=1)
        for host in cluster.hosts:
            cluster.set_rate(host, "10mbit")
        (workers.folder / "go-on").touch()
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    reports = [json.loads((job.folder / f"slow.{rank}.json").read_text()) for rank in (0, 1)]
    # Each of two ranks sends as much as it reduces. A token bucket lets no more through than its
    # depth and what its rate allows; 1 % is for tc's rounding of the rate.
    least_seconds = (sum(plan.num_bytes) - burst_bytes("10mbit")) / (1.01 * 10e6 / 8)
    for step in (4, 5, 6):  # whole under the new rate, counted from 0
        begins, ends = zip(*(report["seconds"][step] for report in reports), strict=True)
        assert max(ends) - min(begins) > least_seconds
    assert [report["error"] < 1e-4 for report in reports] == [True, True], reports


def test_reset_connections_are_noticed(die: Die, make_cluster: Callable[..., Cluster]) -> None:
    """Connections of lanes are reset: a reset of Gloo's on their own host may end the process."""
    env = {"TF_LIBRA_PORTS": LANES_PORT}
    with make_cluster(2) as cluster, die("cut", cluster, env=env) as workers:
        incident(workers.folder, rank=1)
        of_lanes = ("sport", "=", f":{LANES_PORT}", "or", "dport", "=", f":{LANES_PORT}")
        cluster.reset(cluster.hosts[1], *of_lanes)
        (workers.folder / "go-on").touch()
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    for rank in (0, 1):
        first = document_of(job, rank)["errors"][0]
        assert GONE.search(first)
        assert "step 4 was not completed" in first
