"""Bootstrap of the lanes: exchange of addresses and of the job's secret.

The job carries this exchange: Horovod, TensorFlow's coordination service, or the rendezvous at rank
0. All later messages between ranks go over the lanes.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import socket
from collections.abc import Sequence
from typing import Any

from tf_libra.backends import engine as engine_lib
from tf_libra.coordination.control_plane import ControlConfig
from tf_libra.coordination.job import Job
from tf_libra.coordination.world import World, host_identity

_INTERFACE = "TF_LIBRA_INTERFACE"
_ZERO_BLOCKS = "TF_LIBRA_ZERO_BLOCKS"
_MAX_PORT = 65535


def offer(world: World, num_lanes: int, identity: str | None = None) -> dict[str, Any]:
    """Starts to listen, and returns the data that every other rank needs to connect.

    Args:
        world: the ranks.
        num_lanes: number of lanes that this rank needs.
        identity: host identity from an earlier rendezvous of the same ranks; None: read it now.

    Raises:
        ValueError: no network interface can be chosen, or a variable has a value that it cannot.
        EngineError: the interface has no address, or no port is free.
    """
    omits_zeros()  # rejects a wrong value before anything runs
    host = listening_host(world)
    # On a single host, this is the interface that the user named, else a Unix socket.
    identity = host_identity() if identity is None else identity
    here = identity if world.local_size < world.size else ""
    with_local = bool(here) and world.local_size > 1
    address = engine_lib.listen(host, listening_ports(), here, with_local)
    secret = os.urandom(engine_lib.SECRET_BYTES)
    return {
        "host": address.host,
        "port": address.port,
        "local": address.local,
        "machine": address.machine,
        # Identifies the ranks of the same host for `_check`.
        "identity": identity,
        "named": os.environ.get(_INTERFACE, ""),
        "interface": _interface(world),
        # All ranks use the secret of rank 0.
        "secret": base64.b64encode(secret).decode() if world.rank == 0 else "",
        "num_lanes": num_lanes,
    }


def connect_lanes(job: Job, terms: ControlConfig) -> engine_lib.Engine:
    """Connects the lanes of all ranks without a prior agreement on options.

    Raises:
        ValueError, EngineError: as from `offer` and `connect`.
    """
    world = job.world(terms.timeout_seconds)
    mine = offer(world, terms.num_lanes)
    return connect(world, terms, job.exchange_json(mine, terms.timeout_seconds))


def connect(
    world: World, terms: ControlConfig, offers: Sequence[dict[str, Any]]
) -> engine_lib.Engine:
    """Connects the lanes of all ranks.

    If the requested numbers of lanes differ, all ranks get the largest, so that the lanes can
    carry the comparison of options that reports the difference.

    Raises:
        ValueError: on every rank, if some listen at an address that only their host can reach.
        EngineError: a rank cannot be reached in time.
    """
    _check(offers)
    return engine_lib.connect(
        world.rank,
        _addresses(offers),
        _secret(offers),
        _num_lanes(offers),
        terms.timeout_seconds,
        terms.stall_warning_seconds,
        terms.liveness_seconds,
        world.job,
        offers[world.rank]["identity"],
        omits_zeros(),
    )


def omits_zeros() -> bool:
    """Returns whether this rank leaves blocks of zeros out of what it sends.

    Raises:
        ValueError: TF_LIBRA_ZERO_BLOCKS is neither "omit" nor "send".
    """
    value = os.environ.get(_ZERO_BLOCKS, "omit")
    if value not in ("omit", "send"):
        raise ValueError(f"{_ZERO_BLOCKS} must be 'omit' or 'send', got {value!r}")
    return value == "omit"


def grow(world: World, engine: engine_lib.Engine, num_lanes: int) -> engine_lib.Engine:
    """Connects more lanes. Every rank must call it at the same point of its script.

    Raises:
        ValueError: no network interface can be chosen.
        EngineError: a rank cannot be reached in time, or has aborted.
    """
    # Reuses the identity: a second read might return "" on one rank, and prevent a grid.
    offers = engine.all_gather(offer(world, num_lanes, engine.machine))
    _check(offers)
    return engine.grow(_addresses(offers), _secret(offers), _num_lanes(offers))


def _check(offers: Sequence[dict[str, Any]]) -> None:
    """Rejects TF_LIBRA_INTERFACE on only some ranks of a host, which are then on two networks.

    Allowed: other ranks choose the same interface, or every rank names its own interface on a
    host that has several.
    """
    first: dict[str, dict[bool, int]] = {}  # per host: first rank by whether it names an interface
    for rank, offer in enumerate(offers):
        first_of_host, names = first.setdefault(offer["identity"], {}), bool(offer["named"])
        first_of_host.setdefault(names, rank)
        other = first_of_host.get(not names)
        if other is None or offers[other]["interface"] == offer["interface"]:
            continue
        named, unnamed = (rank, other) if names else (other, rank)
        listens = f"at {offers[unnamed]['host']}"
        if offers[unnamed]["host"].startswith(engine_lib.UNIX):
            listens = "on a Unix socket"
        elif not offer["identity"]:  # the ranks may be on two hosts
            continue
        raise ValueError(
            f"TF_LIBRA_INTERFACE is set on rank {named}, which listens on"
            f" {offers[named]['named']} at {offers[named]['host']}, and not on rank {unnamed} of"
            f" the same host, which listens {listens}: set it on all ranks or on none"
        )


def _addresses(offers: Sequence[dict[str, Any]]) -> list[engine_lib.Address]:
    parts = ("host", "port", "local", "machine")
    return [engine_lib.Address(*(offer[part] for part in parts)) for offer in offers]


def _secret(offers: Sequence[dict[str, Any]]) -> bytes:
    return base64.b64decode(offers[0]["secret"])


def _num_lanes(offers: Sequence[dict[str, Any]]) -> int:
    return max(offer["num_lanes"] for offer in offers)


def listening_host(world: World) -> str:
    """Returns the address to listen on: a Unix socket on a single host, else of an interface.

    TF_LIBRA_INTERFACE names the interface, on a single host too; else HOROVOD_GLOO_IFACE does. If
    both are unset, the address is the one that the launcher gives for this host, if any, or by
    which this host reached rank 0.

    Raises:
        ValueError: several hosts, and no interface is named in the environment; or the name of
            this host resolves to no address that other hosts can reach.
    """
    interface = _interface(world)
    if not interface and world.local_size == world.size:
        return engine_lib.UNIX
    if not interface and world.host:
        return _numeric(world.host)
    if not interface:
        raise ValueError(
            "the workers run on several hosts, and neither TF_LIBRA_INTERFACE nor"
            " HOROVOD_GLOO_IFACE names the network interface between them (such as eth0); the"
            " launcher's address of rank 0 is a loopback address or none"
        )
    return engine_lib.interface_address(interface)


def _interface(world: World) -> str:
    """Returns the name of the interface between ranks; "" if none is named or needed."""
    if interface := os.environ.get(_INTERFACE, ""):
        return interface
    if world.local_size == world.size:
        return ""
    # horovodrun may name several, separated by commas; Gloo takes the first.
    return os.environ.get("HOROVOD_GLOO_IFACE", "").split(",")[0]


def _numeric(host: str) -> str:
    """Returns the IP address that the host name resolves to."""
    advice = "name the network interface between the hosts (such as eth0) by TF_LIBRA_INTERFACE"
    try:
        # Sorted: IPv4 before IPv6, and the same each time.
        found = sorted({(info[0], str(info[4][0])) for info in socket.getaddrinfo(host, None)})
    except OSError as error:
        raise ValueError(
            f"the launcher calls this host {host!r}, unknown here ({error}): {advice}"
        ) from error
    others = [address for _, address in found if not ipaddress.ip_address(address).is_loopback]
    if not others:
        raise ValueError(
            f"the launcher calls this host {host!r}, which is {found[0][1]} here, where other hosts"
            f" do not reach it: {advice}"
        )
    return others[0]


def listening_ports() -> tuple[int, int] | None:
    """Returns the first and last port of TF_LIBRA_PORTS, such as 20000-20063; None if unset.

    A rank listens at one port, regardless of its number of lanes.

    Raises:
        ValueError: the value is neither a port nor a range of ports.
    """
    text = os.environ.get("TF_LIBRA_PORTS", "")
    if not text:
        return None
    first, hyphen, last = text.partition("-")
    ports = [int(port) if port.isdecimal() else 0 for port in (first, last if hyphen else first)]
    if not 1 <= ports[0] <= ports[1] <= _MAX_PORT:
        raise ValueError(
            f"TF_LIBRA_PORTS must be a port, or the first and the last of a range such as"
            f" 20000-20063, from 1 to {_MAX_PORT}, got {text!r}"
        )
    return ports[0], ports[1]
