"""Job of a launcher that only sets variables: torchrun, TF_CONFIG, Slurm, MPI, or by hand.

Its ranks meet at rank 0 (`rendezvous_server`). One process without any launcher is a job of one.
"""

from __future__ import annotations

import contextlib
import errno
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from ipaddress import ip_address
from typing import Any, ClassVar

from tf_libra.coordination import rendezvous_address, rendezvous_client, rendezvous_frames
from tf_libra.coordination.control_plane import EngineError
from tf_libra.coordination.launcher_environment import LauncherEnvironment
from tf_libra.coordination.launcher_variables import join_address
from tf_libra.coordination.rendezvous_client import JobId, NotFoundError, RendezvousClient
from tf_libra.coordination.rendezvous_server import RendezvousServer
from tf_libra.coordination.world import World, host_identity, local_rank_and_size
from tf_libra.internal import formatting, log_utils
from tf_libra.internal.process_state import STATE
from tf_libra.launcher import SECRET_VARIABLE

_PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class LaunchedJob:
    """Processes that a launcher has started; see `Job`.

    Attributes:
        environment: place of this process, from the launcher's variables.
    """

    environment: LauncherEnvironment

    name: ClassVar[str] = "the launcher's job"
    by_strategy: ClassVar[bool] = False
    engines: ClassVar[tuple[str, ...]] = ("lanes",)
    how_to_start: ClassVar[str] = (
        "start workers with tf-libra run -np 2 python train.py, or by a launcher of"
        " docs/launchers.md"
    )

    def rank_and_size(self) -> tuple[int, int]:
        """Returns rank and world size."""
        return self.environment.rank, self.environment.world_size

    def local_rank_and_size(self, timeout_seconds: float) -> tuple[int, int]:
        """Returns the local rank and the local size."""
        environment = self.environment
        if environment.world_size == 1:
            return 0, 1
        if environment.local_rank is not None and environment.local_world_size is not None:
            return environment.local_rank, environment.local_world_size
        return local_rank_and_size(self._hosts(timeout_seconds).machines, environment.rank)

    def world(self, timeout_seconds: float) -> World:
        """Returns the ranks. They exchange once which of them share a host.

        Raises:
            ValueError: two processes have one rank, or the ranks have different settings.
            LostRankError: a rank did not come in time.
        """
        rank, size = self.rank_and_size()
        if size == 1:
            return World(0, 1, 1)
        hosts = self._hosts(timeout_seconds)
        machine = hosts.machines[rank]
        return World(rank, size, hosts.machines.count(machine), hosts.addresses[rank])

    def is_another(self, world: World) -> bool:
        """Returns False: the variables of a process do not change."""
        return False

    def exchange_json(self, message: dict[str, Any], timeout_seconds: float) -> list[Any]:
        """Returns every rank's message, by rank; see `Job`."""
        self._hosts(timeout_seconds)  # the first exchange
        return (
            _rendezvous_link(self.environment)
            .client(timeout_seconds)
            .exchange(message, timeout_seconds)
        )

    def lost(self, message: str) -> Exception:
        """Returns the error that TensorFlow's own collectives raise."""
        import tensorflow as tf

        return tf.errors.UnavailableError(None, None, message)

    def is_elastic(self) -> bool:
        """Returns False."""
        return False

    def call_on_reset(self, callback: Callable[[], None]) -> None:
        """Does nothing: the job is not elastic."""

    def call_before_shutdown(self, callback: Callable[[], None]) -> None:
        """Does nothing: the job ends with the script."""

    def _hosts(self, timeout_seconds: float) -> _RankHosts:
        return _rendezvous_link(self.environment).hosts(timeout_seconds)


@dataclass(frozen=True)
class _RankHosts:
    """Hosts of the ranks.

    Attributes:
        machines: keys by rank, equal for ranks that can connect by Unix sockets.
        addresses: IP addresses by rank at which other hosts reach the rank; "" if unknown.
    """

    machines: tuple[str, ...]
    addresses: tuple[str, ...]

    @classmethod
    def from_messages(cls, messages: list[dict[str, Any]]) -> _RankHosts:
        """Returns the places that the ranks have described to each other."""
        machines = tuple(message["machine"] for message in messages)
        # Ranks on the host of rank 0 may reach it by loopback. Other hosts reach it at these.
        reached = [
            message["server"]
            for message in messages
            if message["machine"] != machines[0] and not ip_address(message["server"]).is_loopback
        ]
        addresses = []
        for machine, message in zip(machines, messages, strict=True):
            address = message["address"]
            if machine == machines[0] and reached:
                address = reached[0]
            addresses.append("" if ip_address(address).is_loopback else address)
        return cls(machines, tuple(addresses))


def _warn_of_equal_local_ranks(messages: list[dict[str, Any]]) -> None:
    """Logs two ranks of one host whose launcher gives them the same local rank."""
    first: dict[tuple[str, int], int] = {}
    for rank, message in enumerate(messages):
        local_rank = message["local_rank"]
        if local_rank is None:
            continue
        other = first.setdefault((message["machine"], local_rank), rank)
        if other != rank:
            log_utils.logger(0).warning(
                "ranks %d and %d run on one host, and the launcher gives both local rank %d: a"
                " script that selects a GPU by it lets them share one",
                *(other, rank, local_rank),
            )
            return


class _RendezvousLink:
    """Connection of this process to the rendezvous of its job, and what the ranks said there."""

    def __init__(self, environment: LauncherEnvironment) -> None:
        self._environment = environment
        self._server: RendezvousServer | None = None
        self._client: RendezvousClient | None = None
        self._known: _RankHosts | None = None

    def hosts(self, timeout_seconds: float) -> _RankHosts:
        """Returns the hosts of all ranks, which the first call exchanges."""
        if self._known is None:
            client = self.client(timeout_seconds)
            mine = {
                # If the host has no identity, its name has to do.
                "machine": host_identity() or platform.node(),
                "address": client.local_address,
                "server": client.server_address,
                "local_rank": self._environment.local_rank,
            }
            messages = client.exchange(mine, timeout_seconds)
            if self._environment.rank == 0:
                _warn_of_equal_local_ranks(messages)
            self._known = _RankHosts.from_messages(messages)
        return self._known

    def client(self, timeout_seconds: float) -> RendezvousClient:
        """Returns the connection, which the first call makes; rank 0 starts the server first.

        Raises:
            ValueError: another process has this rank, or the ranks have different settings.
            LostRankError: rank 0 does not come in time.
            EngineError: rank 0 cannot listen at its port.
        """
        if self._client is None:
            environment = self._environment
            secret = rendezvous_frames.read_secret()
            hello = {
                "rank": environment.rank,
                "size": environment.world_size,
                "who": rendezvous_client.describe_process(),
                "version": metadata.version("tf-libra"),
            }
            address, ports = environment.address, environment.ports
            if environment.rank == 0:
                self._server = _serve(environment, hello, secret, timeout_seconds)
                address = self._server.own_host
                ports = range(self._server.port, self._server.port + 1)
            self._client = rendezvous_client.connect(
                address, ports, hello, _job_id(environment), secret, timeout_seconds
            )
        return self._client

    def close(self) -> None:
        """Closes the connection, and the server if this is rank 0."""
        if self._client is not None:
            self._client.close()
        if self._server is not None:
            self._server.close()


@STATE.value(survives_fork=False)
def _rendezvous_links() -> dict[LauncherEnvironment, _RendezvousLink]:
    """Returns the rendezvous of this process, one per job."""
    return {}


def _rendezvous_link(environment: LauncherEnvironment) -> _RendezvousLink:
    return _rendezvous_links().setdefault(environment, _RendezvousLink(environment))


def _job_id(environment: LauncherEnvironment) -> JobId:
    return JobId(environment.job_id, environment.job_id_source)


def _serve(
    environment: LauncherEnvironment, hello: dict[str, Any], secret: bytes, timeout_seconds: float
) -> RendezvousServer:
    """Starts the server; waits while another program, such as the last job, uses its port."""
    until = time.monotonic() + timeout_seconds
    has_logged = False
    is_here = rendezvous_address.is_of_this_host(environment.address)
    if not is_here:
        log_utils.logger(0).info(
            "this host has no address %s: rank 0 listens at all addresses, and others must reach it"
            " by that one",
            environment.address,
        )
    while True:
        # Another process may be rank 0 at another port, or on the host that has the address.
        if environment.num_ports > 1 or not is_here:
            _reject_second_server(environment, hello, secret, until)
        try:
            listeners = rendezvous_address.listen(
                environment.address,
                environment.ports,
                environment.local_world_size == environment.world_size,
            )
            break
        except OSError as error:
            _reject_second_server(environment, hello, secret, until)
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise EngineError(
                    "rank 0 cannot listen at"
                    f" {join_address(environment.address, environment.ports)}: {error}"
                ) from error
            if not has_logged:
                log_utils.logger(0).info(
                    "rank 0 waits up to %s for the port of %s, which another program uses",
                    formatting.time(timeout_seconds),
                    join_address(environment.address, environment.ports),
                )
                has_logged = True
        time.sleep(_PAUSE_SECONDS)
    server = RendezvousServer(
        *(
            listeners,
            environment.world_size,
            environment.job_id,
            str(hello["version"]),
            secret,
            environment.address,
        ),
        str(hello["who"]),
    )
    if not secret:
        log_utils.logger(0).info(
            "rendezvous at %s without a secret: a process that reaches this port could take part"
            " in the job; set %s on all ranks to prevent it",
            join_address(environment.address, range(server.port, server.port + 1)),
            SECRET_VARIABLE,
        )
    return server


def _reject_second_server(
    environment: LauncherEnvironment, hello: dict[str, Any], secret: bytes, until: float
) -> None:
    """Raises `ValueError` if another process is rank 0 of this job already."""
    with contextlib.suppress(NotFoundError):
        rendezvous_client.find(
            environment.address, environment.ports, hello, _job_id(environment), secret, until
        ).close()
