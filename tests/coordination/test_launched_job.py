"""Ranks that meet at rank 0: each a thread with a connection of its own, over loopback."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from benchmarks.rendezvous_env import free_addresses
from tf_libra.coordination import (
    current_job,
    launched_job,
    rendezvous_address,
    rendezvous_client,
    rendezvous_frames,
    rendezvous_server,
)
from tf_libra.coordination.control_plane import EngineError, LostRankError
from tf_libra.coordination.launched_job import LaunchedJob, _RankHosts
from tf_libra.coordination.launcher_environment import LauncherEnvironment
from tf_libra.coordination.launcher_variables import split_address
from tf_libra.coordination.rendezvous_server import RendezvousServer
from tf_libra.coordination.world import World

SECONDS = 60.0


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[LauncherEnvironment]:
    """Rank 0 of 3, at a port that is free; what was started ends with the test."""
    monkeypatch.setattr(rendezvous_server, "GRACE_SECONDS", 0.2)
    host, port = split_address(free_addresses(1)[0], "a free address")
    yield LauncherEnvironment("torchrun", 0, 3, 0, 3, host, port, 1, "this job")
    for link in launched_job._rendezvous_links().values():
        link.close()
    launched_job._rendezvous_links().clear()


def on_ranks(
    environment: LauncherEnvironment, call: Callable[[LaunchedJob], Any], ranks: Any = range(3)
) -> list[Any]:
    """Returns what the call returns, or raises, on each rank."""

    def run(rank: int) -> Any:
        try:
            return call(LaunchedJob(replace(environment, rank=rank, local_rank=rank)))
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks))


def exchanged(job: LaunchedJob, seconds: float = SECONDS) -> list[Any]:
    return job.exchange_json({"from": job.environment.rank}, seconds)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
@pytest.mark.parametrize("secret", ["", "a secret"])
def test_ranks_exchange_messages(
    environment: LauncherEnvironment, host: str, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if secret:
        monkeypatch.setenv("TF_LIBRA_SECRET", secret)
    environment = replace(environment, address=host)
    everyone = [{"from": rank} for rank in range(3)]
    assert on_ranks(environment, exchanged) == [everyone] * 3
    assert on_ranks(environment, exchanged) == [everyone] * 3
    assert on_ranks(environment, lambda job: job.world(SECONDS)) == [
        World(r, 3, 3) for r in range(3)
    ]


def test_local_ranks_are_exchanged_if_the_launcher_does_not_tell(
    environment: LauncherEnvironment,
) -> None:
    environment = replace(environment, local_world_size=None)
    assert on_ranks(environment, lambda job: job.local_rank_and_size(SECONDS)) == [
        (r, 3) for r in range(3)
    ]


def test_missing_rank_is_named_on_all_others(environment: LauncherEnvironment) -> None:
    errors = on_ranks(environment, lambda job: exchanged(job, 1.0), ranks=(0, 2))
    assert [type(error) for error in errors] == [LostRankError] * 2
    assert ["for rank 1 at" in str(error) for error in errors] == [True, True]


def test_missing_rank_0_is_named_with_its_address(environment: LauncherEnvironment) -> None:
    [error] = on_ranks(environment, lambda job: exchanged(job, 0.3), ranks=[1])
    assert isinstance(error, LostRankError)
    assert f"rank 0 at 127.0.0.1:{environment.port}" in str(error)


def test_ranks_that_others_wait_for_are_logged(
    environment: LauncherEnvironment,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for module in (rendezvous_server, rendezvous_client):
        monkeypatch.setattr(module, "STALL_SECONDS", 0.0)
    assert on_ranks(environment, lambda job: type(exchanged(job, 0.3)), [0, 2]) != []
    on_ranks(replace(environment, port=environment.port - 1), lambda job: exchanged(job, 0.1), [1])
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any(warning.startswith("rank 0 ") and "for rank" in warning for warning in warnings)
    assert any(warning.startswith("rank 1 ") and "for rank 0 at" in warning for warning in warnings)


def test_address_of_another_host_is_named_if_ranks_are_missing() -> None:
    """Rank 0 then listens at all addresses."""
    server = RendezvousServer(
        [socket.create_server(("", 0))], 2, "", "1", b"", "head.example", "me"
    )
    hello = {"rank": 0, "size": 2, "who": "me", "version": "1"}
    ports = range(server.port, server.port + 1)
    job = rendezvous_client.JobId("", "")
    client = rendezvous_client.connect(server.own_host, ports, hello, job, b"", SECONDS)
    with pytest.raises(LostRankError, match=r"no address head\.example"):
        client.exchange("here", 0.2)
    client.close()
    server.close()


def test_rank_0_on_another_host_looks_for_the_one_that_has_the_address(
    environment: LauncherEnvironment,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    on_ranks(environment, launched, ranks=[0])
    monkeypatch.setattr(rendezvous_address, "is_of_this_host", lambda address: False)
    [error] = on_ranks(replace(environment, local_world_size=2), launched, ranks=[0])
    assert isinstance(error, ValueError) and "two processes are rank 0" in str(error)
    assert any(record.args == (environment.address,) for record in caplog.records)


def test_second_rank_0_is_rejected_before_the_first_has_a_peer(
    environment: LauncherEnvironment,
) -> None:
    listeners = rendezvous_address.listen(environment.address, environment.ports, True)
    version = launched_job.metadata.version("tf-libra")
    server = RendezvousServer(
        listeners, 3, environment.job_id, version, b"", environment.address, "the first"
    )
    [error] = on_ranks(environment, launched, ranks=[0])
    assert isinstance(error, ValueError) and "two processes are rank 0: the first" in str(error)
    server.close()


def test_equal_local_ranks_of_one_host_are_logged(
    environment: LauncherEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    def run(job: LaunchedJob) -> World:
        return LaunchedJob(replace(job.environment, local_rank=0)).world(SECONDS)

    assert on_ranks(environment, run) == [World(r, 3, 3) for r in range(3)]
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert (warning.args or ())[-1] == 0


@pytest.mark.parametrize("number", [0, 1])
def test_two_processes_of_one_rank_are_named_on_all(
    environment: LauncherEnvironment, number: int
) -> None:
    """The second of them meets under a job of its own in this process."""
    second = replace(environment, rank=number, local_world_size=2)
    ranks = [*(r for r in range(3) if r != 2), second]

    def run(environment_or_rank: Any) -> Any:
        if environment_or_rank is second:
            first.wait(SECONDS)
        job = LaunchedJob(
            replace(environment, rank=environment_or_rank)
            if isinstance(environment_or_rank, int)
            else environment_or_rank
        )
        try:
            if environment_or_rank == number:
                launched_job._rendezvous_link(job.environment).client(SECONDS)
                first.set()
            return exchanged(job)
        except Exception as error:
            return error

    first = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        errors = list(pool.map(run, ranks))
    assert [type(error) for error in errors] == [ValueError] * 3
    assert all(f"two processes are rank {number}" in str(error) for error in errors)


def test_rank_that_ends_early_is_named_immediately(environment: LauncherEnvironment) -> None:
    def run(job: LaunchedJob) -> Any:
        if job.environment.rank != 1:
            return exchanged(job)
        link = launched_job._rendezvous_link(job.environment)
        link.client(SECONDS)
        link.close()
        return None

    errors = on_ranks(environment, run)
    assert [type(errors[rank]) for rank in (0, 2)] == [LostRankError] * 2
    assert all("rank 1 (process" in str(errors[rank]) for rank in (0, 2))


def test_rank_0_that_ends_early_is_named_immediately(environment: LauncherEnvironment) -> None:
    met = threading.Barrier(3)

    def run(job: LaunchedJob) -> Any:
        exchanged(job)
        met.wait(SECONDS)
        if job.environment.rank:
            return exchanged(job)
        launched_job._rendezvous_link(job.environment).close()
        return None

    errors = on_ranks(environment, run)[1:]
    assert [type(error) for error in errors] == [LostRankError] * 2
    assert all("rank 0" in str(error) for error in errors)


def test_another_world_size_is_named_on_all(environment: LauncherEnvironment) -> None:
    def run(job: LaunchedJob) -> Any:
        environment = job.environment
        return exchanged(
            LaunchedJob(replace(environment, world_size=4 if environment.rank == 2 else 3))
        )

    errors = on_ranks(environment, run)
    assert [type(error) for error in errors] == [ValueError] * 3
    assert all("world size is 3 on rank 0 and 4 on rank 2" in str(error) for error in errors)


def test_another_version_is_named_on_all(
    environment: LauncherEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not isinstance(on_ranks(environment, launched, ranks=[0])[0], Exception)
    monkeypatch.setattr(launched_job.metadata, "version", lambda _: "0.0.1")
    [error] = on_ranks(environment, exchanged, ranks=[1])
    [first] = on_ranks(environment, exchanged, ranks=[0])
    assert [type(failure) for failure in (error, first)] == [ValueError] * 2
    assert str(error) == str(first)
    assert "rank 1" in str(error) and "0.0.1" in str(error)


def launched(job: LaunchedJob) -> Any:
    return launched_job._rendezvous_link(job.environment).client(SECONDS)


def test_another_secret_ends_that_rank_alone(
    environment: LauncherEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = replace(environment, world_size=2, local_world_size=2)
    monkeypatch.setenv("TF_LIBRA_SECRET", "first")
    on_ranks(environment, launched, ranks=[0])
    for secret in ("second", None):
        if secret is None:
            monkeypatch.delenv("TF_LIBRA_SECRET")
        else:
            monkeypatch.setenv("TF_LIBRA_SECRET", secret)
        [error] = on_ranks(environment, launched, ranks=[1])
        assert isinstance(error, ValueError) and "secret" in str(error)
        server = launched_job._rendezvous_link(environment)._server
        # A stranger may repeat itself without end.
        assert server is not None and isinstance(server._state.rejected, str)
        assert not server._state.informed
    monkeypatch.setenv("TF_LIBRA_SECRET", "first")
    assert on_ranks(environment, exchanged, ranks=range(2)) == [[{"from": 0}, {"from": 1}]] * 2


def test_another_program_at_the_address_is_not_taken_for_rank_0(
    environment: LauncherEnvironment,
) -> None:
    with socket.create_server((environment.address, environment.port)) as other:

        def answer() -> None:
            while True:
                try:
                    connection, _ = other.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        threading.Thread(target=answer, daemon=True).start()
        errors = on_ranks(environment, lambda job: exchanged(job, 0.5), ranks=(0, 1))
        other.shutdown(socket.SHUT_RDWR)
    assert isinstance(errors[0], EngineError) and "cannot listen" in str(errors[0])
    assert isinstance(errors[1], LostRankError) and "another program" in str(errors[1])


def test_rank_0_of_another_job_is_not_taken_for_ours(environment: LauncherEnvironment) -> None:
    on_ranks(environment, launched, ranks=[0])
    other = replace(environment, job_id="another job", job_id_source="TF_CONFIG")
    [error] = on_ranks(other, lambda job: exchanged(job, 0.3), ranks=[1])
    assert isinstance(error, LostRankError) and "another job" in str(error)
    assert "TF_CONFIG" in str(error)
    [error] = on_ranks(environment, lambda job: exchanged(job, 0.3), ranks=[0])
    assert isinstance(error, LostRankError) and "met rank 1 of another job" in str(error)


def test_bytes_of_a_stranger_end_nothing(environment: LauncherEnvironment) -> None:
    on_ranks(environment, launched, ranks=[0])
    hello = json.dumps({"rank": "x"}).encode()
    for sent in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, len(hello).to_bytes(4) + hello):
        with socket.create_connection((environment.address, environment.port)) as stranger:
            stranger.sendall(sent)
    assert on_ranks(environment, exchanged) == [[{"from": rank} for rank in range(3)]] * 3


def test_port_in_use_is_passed_over_where_there_are_several(
    environment: LauncherEnvironment,
) -> None:
    with socket.create_server((environment.address, environment.port)):
        several = replace(environment, num_ports=16)
        assert len(on_ranks(several, exchanged)[0]) == 3


def test_frame_that_was_changed_is_rejected() -> None:
    ours, theirs = (rendezvous_frames.FrameCodec(role, "key") for role in ("client", "server"))
    frame = ours.encode({"a": 1})[4:]
    assert theirs.decode(frame) == {"a": 1}
    for wrong in (frame, ours.encode({"a": 1})[4:-1] + b"]", b""):  # the first for a second time
        with pytest.raises(rendezvous_frames.FrameError):
            theirs.decode(wrong)


def test_secret_may_be_in_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("abc\n")
    path.chmod(0o600)
    assert rendezvous_frames.read_secret({"TF_LIBRA_SECRET_FILE": str(path)}) == b"abc"
    assert rendezvous_frames.read_secret({"TF_LIBRA_SECRET": "def"}) == b"def"
    assert rendezvous_frames.read_secret({}) == b""
    both = {"TF_LIBRA_SECRET_FILE": str(path), "TF_LIBRA_SECRET": "def"}
    for env in (both, {"TF_LIBRA_SECRET": ""}, {"TF_LIBRA_SECRET_FILE": str(tmp_path / "none")}):
        with pytest.raises(ValueError, match="TF_LIBRA_SECRET"):
            rendezvous_frames.read_secret(env)
    path.chmod(0o640)
    with pytest.raises(ValueError, match="600"):
        rendezvous_frames.read_secret({"TF_LIBRA_SECRET_FILE": str(path)})


def test_addresses_are_those_by_which_ranks_reach_rank_0() -> None:
    def message(machine: str, address: str, server: str) -> dict[str, str]:
        return {"machine": machine, "address": address, "server": server}

    here = message("a", "127.0.0.1", "127.0.0.1")
    hosts = _RankHosts.from_messages([here, here, message("b", "10.0.0.2", "10.0.0.1")])
    assert hosts.machines == ("a", "a", "b")
    assert hosts.addresses == ("10.0.0.1", "10.0.0.1", "10.0.0.2")
    assert _RankHosts.from_messages([here, here]).addresses == ("", "")


def test_single_process_needs_no_rendezvous() -> None:
    job = LaunchedJob(LauncherEnvironment("none", 0, 1))
    assert (job.rank_and_size(), job.local_rank_and_size(0.0)) == ((0, 1), (0, 1))
    assert job.world(0.0) == World(0, 1, 1)


def test_lost_rank_is_what_collectives_of_tensorflow_raise() -> None:
    error = LaunchedJob(LauncherEnvironment("none", 0, 1)).lost("rank 1 is gone")
    assert isinstance(error, tf.errors.UnavailableError)


def test_misleading_variables_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    job_id = str(tmp_path)  # logged once per job
    monkeypatch.delenv("TF_LIBRA_LAUNCHED", raising=False)
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("MASTER_ADDR", "h")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    current_job._log_once(LauncherEnvironment("torchrun", 0, 2, None, None, "h", 1, 1, job_id))
    current_job._log_once(LauncherEnvironment("none", 0, 1, job_id=job_id))
    disagreement, alone = [record for record in caplog.records if record.levelname == "WARNING"]
    assert {"torchrun", "mpi", "TF_LIBRA_LAUNCHER"} < set(disagreement.args or ())
    assert (alone.args or ())[0] == "4"
