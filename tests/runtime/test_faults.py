"""Faults that processes survive: strangers, sizes that differ, a rank without data."""

import json
import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forkserver import Nursery
from tests.worker_processes import Job, running_workers, wait_until

RANKS = [0, 1]
DEADLINE_SECONDS = 300.0


def read(path: Path) -> Any:
    wait_until(path.exists, DEADLINE_SECONDS)
    return json.loads(path.read_text())


def connect(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=DEADLINE_SECONDS)


def send_megabytes(stranger: socket.socket) -> int:
    """Returns the bytes that the other side, or its system, has taken before it hung up."""
    sent = 0
    try:
        while sent < 100 << 20:
            sent += stranger.send(bytes(1 << 20))
    except OSError:  # reset
        pass
    return sent


class Program(socketserver.BaseRequestHandler):
    """Answers every caller, and hangs up."""

    def handle(self) -> None:
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture(scope="module")
def program_port() -> Iterator[int]:
    """The port of a program that has nothing to do with the job."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Program) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture(scope="module")
def faults(
    nursery: Nursery, plan_file: Path, tmp_path_factory: pytest.TempPathFactory, program_port: int
) -> Job:
    folder = tmp_path_factory.mktemp("faults")
    env = {"TF_LIBRA_INTERFACE": "lo", "TF_LIBRA_JOB_PORT": str(program_port)}
    with running_workers("faults.py", 2, folder, str(plan_file), env=env, nursery=nursery) as job:
        host, port = read(folder / "listening.0.json")
        # One says nothing, all of the time; one begins as a rank does; others say too much.
        silent, half = connect(host, port), connect(host, port)
        half.sendall(b"TFLIBRA2" + bytes(20))
        for words in (b"GET / HTTP/1.1\r\n\r\n" + bytes(100), b"TFLIBRA2" + bytes(1000), b""):
            with connect(host, port) as garbage:
                garbage.sendall(words)
        with connect(host, port) as verbose:
            assert send_megabytes(verbose) < 100 << 20
        (folder / "connect").touch()
        read(folder / "training.0.json")
        read(folder / "training.1.json")
        refused = 0
        for rank in RANKS:
            try:
                connect(*read(folder / f"listening.{rank}.json")).close()
            except ConnectionRefusedError:
                refused += 1
        assert refused == 2
        (folder / "strangers-were-there").touch()
        job.wait(DEADLINE_SECONDS)
        silent.close()
        half.close()
        ended = job.job()
    assert ended.returncodes == (0, 0), ended.output(0) + ended.output(1)
    return ended


@pytest.mark.parametrize("rank", RANKS)
def test_strangers_change_nothing(faults: Job, rank: int) -> None:
    value = faults.value("strangers", rank)
    assert value["error"] < 1e-9
    assert value["grown"] < 32 << 20


@pytest.mark.parametrize("rank", RANKS)
def test_size_that_differs_at_run_time_is_rejected(faults: Job, rank: int) -> None:
    first, again = faults.value("size_differs_at_run_time", rank)
    for message in (first, again):
        assert "table" in message
        assert f"rank {1 - rank}" in message
    # Who sees the other give up first may not get to compare.
    messages = [faults.value("size_differs_at_run_time", r)[0] for r in RANKS]
    sizes = [re.search(r"reduces (\d+) bytes, this rank (\d+)", message) for message in messages]
    assert sizes[rank] or f"rank {1 - rank} gave up" in first
    # Two rows of five float32.
    assert {abs(int(found[1]) - int(found[2])) for found in sizes if found} == {40}


@pytest.mark.parametrize("rank", RANKS)
def test_size_that_differs_after_a_retrace_is_rejected(faults: Job, rank: int) -> None:
    for message in faults.value("size_differs_after_a_retrace", rank):
        assert f"rank {1 - rank} reduces group" in message
        assert "a new trace" in message
        assert "step 4 was not completed" in message


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(
    ("case", "difference"),
    [
        ("another_version_is_installed", "version of tf_libra is "),
        ("another_tensorflow", "version of TensorFlow is "),
        ("another_world_size", "world size is 2 on rank 0 and 3 on rank 1"),
    ],
)
def test_rank_of_another_version_or_world_is_rejected(
    faults: Job, case: str, difference: str, rank: int
) -> None:
    for message in faults.value(case, rank):
        assert difference in message
        assert "nothing was exchanged" in message


@pytest.mark.parametrize("rank", RANKS)
def test_port_that_is_taken_is_named(faults: Job, rank: int) -> None:
    # Rank 1 stops listening when it has found out, which is how rank 0 learns of it.
    reported = ["nobody listens for rank 1 any more", "rank 0's port is held by another program"][
        rank
    ]
    assert reported in faults.value("port_is_taken", rank)


@pytest.mark.parametrize("rank", RANKS)
def test_rank_without_data_is_dropped(faults: Job, rank: int) -> None:
    value = faults.value("runs_out_of_data", rank)
    assert len(value["errors"]) == 3
    for message in value["errors"]:
        assert "HorovodInternalError: " in message
        assert "waited 15 s for rank(s) 1" in message
        assert "TF_LIBRA_TIMEOUT_SECONDS" in message
        assert "group 0 (b2, w2) of plan " in message
        assert "step 4 was not completed" in message
    assert "phase: run" in value["explained"]


@pytest.mark.parametrize("rank", RANKS)
def test_last_commit_restores(faults: Job, rank: int) -> None:
    value = faults.value("runs_out_of_data", rank)
    assert value["restored"]
    assert value["moved"]
    assert value["step"] == 2
