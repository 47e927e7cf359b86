"""A network that is cut, reset or slow: no rank hangs, and every rank reports what has happened."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from benchmarks.cluster import Cluster, burst_bytes
from tests.runtime.death_jobs import (
    DEADLINE_SECONDS,
    GONE,
    Die,
    check_survivors,
    document_of,
    incident,
    with_wide,
)
from tf_libra.specs.plan import Plan

# On hosts of their own.
LANES_PORT = "20000"


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
