"""Hosts of a cluster reach each other over the links they were promised, and leave no trace."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import cluster as cluster_lib
from benchmarks import machine
from benchmarks.cluster import Cluster, ClusterError, Host
from tests.worker_processes import wait_until

DEADLINE_SECONDS = 120.0
# Listens, says so, and counts what comes.
RECEIVE = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
while True:
    connection, address = server.accept()
    size = 0
    while data := connection.recv(65536):
        size += len(data)
    print(address[0], size, flush=True)
"""
SEND = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2])) as connection:
        connection.sendall(bytes(100_000))
except OSError as error:
    sys.exit(type(error).__name__)
"""


def names_of(pid: int) -> set[str]:
    return {name for name in cluster_lib._all_names() if name.startswith(f"tfl{pid}")}


def send(cluster: Cluster, sender: Host, receiver: Host, timeout: float) -> str:
    """Empty if it has worked, else the error."""
    process = cluster.popen(
        sender,
        [sys.executable, "-c", SEND, receiver.address, str(timeout)],
        dict(os.environ),
        stderr=subprocess.PIPE,
    )
    _, reported = process.communicate(timeout=DEADLINE_SECONDS)
    return reported.decode().strip()


def test_cores_are_dealt_out_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 5, 7})
    assert machine.shares(1) == [{2, 3, 5, 7}]
    assert machine.shares(2) == [{2, 3}, {5, 7}]
    assert machine.shares(3) == [{2}, {3}, {5}]
    assert machine.shares(6) == [{2}, {3}, {5}, {7}, {2}, {3}]


def test_bucket_holds_half_a_millisecond_and_whole_packets() -> None:
    assert cluster_lib.burst_bytes("5gbit") == 312_500
    assert cluster_lib.burst_bytes("1gbit") == cluster_lib.burst_bytes("10mbit") == 1 << 17
    assert cluster_lib.burst_bytes("8000000kbit") == 500_000
    assert cluster_lib.burst_bytes("fast") == 1 << 17


def test_says_that_it_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="need root"):
        Cluster(2)


def test_number_of_hosts_is_checked(make_cluster: Callable[..., Cluster]) -> None:
    for number in (0, 65):
        with pytest.raises(ClusterError, match=f"hosts must be from 1 to 64, got {number}"):
            make_cluster(number)


def test_rate_that_tc_does_not_know_leaves_nothing(make_cluster: Callable[..., Cluster]) -> None:
    with pytest.raises(ClusterError, match="tbf"), make_cluster(1, "fast"):
        pass
    assert names_of(os.getpid()) == set()


def test_connections_are_limited_each(make_cluster: Callable[..., Cluster]) -> None:
    with pytest.raises(ClusterError, match="flow_rate needs rate, got '1gbit' without one"):
        make_cluster(2, None, "1gbit")
    with make_cluster(2, "800mbit", "100mbit") as cluster:
        first, second = cluster.hosts
        inside = ["ip", "netns", "exec", first.namespace, "tc"]
        show = [[*inside, what, "show", "dev", "eth0"] for what in ("class", "filter")]
        classes, filters = (
            subprocess.run(command, capture_output=True, text=True, check=True).stdout
            for command in show
        )
        assert classes.count("rate 100Mbit") == 65  # of 8 by 8 ports, and what is no TCP
        assert classes.count("rate 800Mbit") == 1
        assert filters.count("flowid") == 64
        receiver = cluster.popen(
            second,
            [sys.executable, "-c", RECEIVE, second.address],
            dict(os.environ),
            stdout=subprocess.PIPE,
        )
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == b"listening\n"
        assert send(cluster, first, second, DEADLINE_SECONDS) == ""
    assert names_of(os.getpid()) == set()


def test_hosts_connect_over_their_links_alone(make_cluster: Callable[..., Cluster]) -> None:
    with make_cluster(2, "800mbit") as cluster:
        first, second = cluster.hosts
        receiver = cluster.popen(
            second,
            [sys.executable, "-c", RECEIVE, second.address],
            dict(os.environ),
            stdout=subprocess.PIPE,
        )
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == b"listening\n"
        assert send(cluster, first, second, DEADLINE_SECONDS) == ""
        assert receiver.stdout.readline().decode() == f"{first.address} 100000\n"

        shaping = [
            subprocess.run(command, capture_output=True, text=True, check=True).stdout
            for host in cluster.hosts
            for command in (
                ["ip", "netns", "exec", host.namespace, "tc", "qdisc", "show", "dev", "eth0"],
                ["tc", "qdisc", "show", "dev", host.link],
            )
        ]
        assert all("tbf" in text and "rate 800Mbit" in text for text in shaping)

        cluster.cut(second)
        assert send(cluster, first, second, 1.0) in ("TimeoutError", "OSError")
        cluster.mend(second)
        assert send(cluster, first, second, DEADLINE_SECONDS) == ""

        cluster.set_rate(second, "80mbit")
        shown = subprocess.run(
            ["tc", "qdisc", "show", "dev", second.link], capture_output=True, text=True, check=True
        )
        assert "rate 80Mbit" in shown.stdout
    assert names_of(os.getpid()) == set()
    # What ran on a host ends with it.
    assert receiver.wait(DEADLINE_SECONDS) == -signal.SIGKILL


def start_cli(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.cluster", "--hosts", "2", "--", *command],
        cwd=Path(cluster_lib.__file__).parent.parent,
        env=dict(os.environ) | {"OUT": str(folder)},
    )


@pytest.mark.usefixtures("make_cluster")
def test_workers_know_their_place(tmp_path: Path) -> None:
    reported = (
        'echo $HOROVOD_RANK $HOROVOD_LOCAL_SIZE $TF_LIBRA_INTERFACE > "$OUT/$HOROVOD_HOSTNAME"'
    )
    assert start_cli(tmp_path, "sh", "-c", reported).wait(DEADLINE_SECONDS) == 0
    assert (tmp_path / "host0").read_text() == "0 1 eth0\n"
    assert (tmp_path / "host1").read_text() == "1 1 eth0\n"


@pytest.mark.usefixtures("make_cluster")
def test_status_is_that_of_a_worker_that_fails(tmp_path: Path) -> None:
    assert start_cli(tmp_path, "sh", "-c", "exit $HOROVOD_RANK$HOROVOD_RANK").wait(60) == 11


@pytest.mark.usefixtures("make_cluster")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left(tmp_path: Path, number: signal.Signals) -> None:
    # A shell that says who it is, and stays.
    cli = start_cli(tmp_path, "sh", "-c", 'echo $$ > "$OUT/$HOROVOD_RANK"; exec sleep 1000')
    reported = [tmp_path / "0", tmp_path / "1"]
    wait_until(
        lambda: all(path.exists() and path.read_text().endswith("\n") for path in reported),
        DEADLINE_SECONDS,
    )
    workers = [int(path.read_text()) for path in reported]
    cli.send_signal(number)
    cli.wait(DEADLINE_SECONDS)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), DEADLINE_SECONDS)
    if number == signal.SIGKILL:
        assert names_of(cli.pid) != set()
        cluster_lib.remove_stale()
    assert names_of(cli.pid) == set()
