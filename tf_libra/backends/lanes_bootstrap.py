"""Exchange by which the lanes of all ranks find each other: addresses and a secret of this job.

Horovod, or TensorFlow's coordination service, carries both, once. Everything else that the ranks
say to each other goes over the lanes.
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
_MAX_PORT = 65535


def offer(world: World, num_lanes: int, place: str | None = None) -> dict[str, Any]:
    """Listens, and says where: what every rank has to know of this one to connect.

    Args:
        world: the ranks.
        num_lanes: the lanes that this rank needs.
        place: the machine as an earlier meeting of the same ranks read it; None: read it now.

    Raises:
        ValueError: no network interface can be chosen.
        EngineError: it has no address, or no port is free.
    """
    host = listening_host(world)
    # On one host it is what the user has named, or it would be a Unix socket.
    place = host_identity() if place is None else place
    here = place if world.local_size < world.size else ""
    with_local = bool(here) and world.local_size > 1
    address = engine_lib.listen(host, listening_ports(), here, with_local)
    secret = os.urandom(engine_lib.SECRET_BYTES)
    return {
        "host": address.host,
        "port": address.port,
        "local": address.local,
        "machine": address.machine,
        # For what is compared with other ranks of the same place.
        "place": place,
        "named": os.environ.get(_INTERFACE, ""),
        "interface": _interface(world),
        # Only rank 0's is used.
        "secret": base64.b64encode(secret).decode() if world.rank == 0 else "",
        "num_lanes": num_lanes,
    }


def meet(job: Job, terms: ControlConfig) -> engine_lib.Engine:
    """Connects the lanes of all ranks, for who agrees with them on nothing else before.

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

    Where ranks ask for different numbers of lanes all get the most, so that the lanes can carry
    what the ranks differ in.

    Raises:
        ValueError: on every rank: some listen where only their host reaches them.
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
        offers[world.rank]["place"],
    )


def grow(world: World, engine: engine_lib.Engine, num_lanes: int) -> engine_lib.Engine:
    """Connects more lanes, where every rank asks for as many at the same place of its script.

    Raises:
        ValueError: no network interface can be chosen.
        EngineError: a rank cannot be reached in time, or has given up.
    """
    # Read again it might be "" on one rank, and lanes would then fit no grid.
    offers = engine.all_gather(offer(world, num_lanes, engine.machine))
    _check(offers)
    return engine.grow(_addresses(offers), _secret(offers), _num_lanes(offers))


def _check(offers: Sequence[dict[str, Any]]) -> None:
    """Rejects TF_LIBRA_INTERFACE on only some ranks of a host, which are then on two networks.

    It is no fault if the other ranks choose the same interface, or if every rank names an interface
    of its own on a host that has several.
    """
    first: dict[str, dict[bool, int]] = {}  # of each place, that names one, and that does not
    for rank, one in enumerate(offers):
        of_place, names = first.setdefault(one["place"], {}), bool(one["named"])
        of_place.setdefault(names, rank)
        other = of_place.get(not names)
        if other is None or offers[other]["interface"] == one["interface"]:
            continue
        named, unnamed = (rank, other) if names else (other, rank)
        listens = f"at {offers[unnamed]['host']}"
        if offers[unnamed]["host"].startswith(engine_lib.UNIX):
            listens = "on a Unix socket"
        elif not one["place"]:  # so they may be on two hosts
            continue
        raise ValueError(
            f"TF_LIBRA_INTERFACE is set on rank {named}, which listens on"
            f" {offers[named]['named']} at {offers[named]['host']}, and not on rank {unnamed} of"
            f" the same host, which listens {listens}: set it on all ranks or on none"
        )


def _addresses(offers: Sequence[dict[str, Any]]) -> list[engine_lib.Address]:
    parts = ("host", "port", "local", "machine")
    return [engine_lib.Address(*(one[part] for part in parts)) for one in offers]


def _secret(offers: Sequence[dict[str, Any]]) -> bytes:
    return base64.b64decode(offers[0]["secret"])


def _num_lanes(offers: Sequence[dict[str, Any]]) -> int:
    return max(one["num_lanes"] for one in offers)


def listening_host(world: World) -> str:
    """The address to listen on: a Unix socket on a single host, else that of an interface.

    TF_LIBRA_INTERFACE names the interface, else Horovod does. Named, it is used on one host too.
    Where neither does, it is the address by which the others know this host, if they know one.

    Raises:
        ValueError: several hosts, and no interface is named in the environment; or the name of
            this host is no address that others reach.
    """
    interface = _interface(world)
    if not interface and world.local_size == world.size:
        return engine_lib.UNIX
    if not interface and world.host:
        return _numeric(world.host)
    if not interface:
        raise ValueError(
            "the workers run on several hosts, and neither TF_LIBRA_INTERFACE nor"
            " HOROVOD_GLOO_IFACE names the network interface between them (such as eth0)"
        )
    return engine_lib.interface_address(interface)


def _interface(world: World) -> str:
    """The one that is named for ranks to reach each other; "" where none is, or none is needed."""
    if interface := os.environ.get(_INTERFACE, ""):
        return interface
    if world.local_size == world.size:
        return ""
    # horovodrun may name several, separated by commas; Gloo takes the first.
    return os.environ.get("HOROVOD_GLOO_IFACE", "").split(",")[0]


def _numeric(host: str) -> str:
    """The address of this host, by its name."""
    advice = "name the network interface between the hosts (such as eth0) by TF_LIBRA_INTERFACE"
    try:
        # Sorted: IPv4 before IPv6, and the same each time.
        found = sorted({(one[0], str(one[4][0])) for one in socket.getaddrinfo(host, None)})
    except OSError as error:
        raise ValueError(
            f"TF_CONFIG calls this host {host!r}, unknown here ({error}): {advice}"
        ) from error
    others = [address for _, address in found if not ipaddress.ip_address(address).is_loopback]
    if not others:
        raise ValueError(
            f"TF_CONFIG calls this host {host!r}, which is {found[0][1]} here, where other hosts do"
            f" not reach it: {advice}"
        )
    return others[0]


def listening_ports() -> tuple[int, int] | None:
    """The first and the last port that TF_LIBRA_PORTS allows to listen at, such as 20000-20063.

    A rank takes one of them, whatever the number of its lanes. None where nothing is said.

    Raises:
        ValueError: it is neither a port nor two with a hyphen between, or these are none.
    """
    text = os.environ.get("TF_LIBRA_PORTS", "")
    if not text:
        return None
    first, hyphen, last = text.partition("-")
    ports = [int(one) if one.isdecimal() else 0 for one in (first, last if hyphen else first)]
    if not 1 <= ports[0] <= ports[1] <= _MAX_PORT:
        raise ValueError(
            f"TF_LIBRA_PORTS must be a port, or the first and the last of a range such as"
            f" 20000-20063, from 1 to {_MAX_PORT}, got {text!r}"
        )
    return ports[0], ports[1]
