"""What is needed of Horovod: who the ranks are, and a way for lanes to meet.

Horovod carries addresses and a per-job secret, once, as JSON in uint8 tensors. Everything else
that the ranks say to each other goes over the lanes.
"""

import base64
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tf_libra.backends import engine as engine_lib

_MAX_PORT = 65535


@dataclass(frozen=True)
class World:
    """The job as Horovod knows it.

    Attributes:
        rank: this process, from 0.
        size: number of processes.
        local_size: number of processes on this host.
    """

    rank: int
    size: int
    local_size: int


def _horovod() -> Any:
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise ImportError(
            "Horovod is not built for the TensorFlow that is installed; build it with"
            f" tools/build_horovod.py of tf-libra's sources ({error})"
        ) from error
    return hvd


def world() -> World:
    """The job that this process belongs to.

    Raises:
        ImportError: Horovod is missing or was built for another TensorFlow.
        ValueError: `hvd.init()` has not been called.
    """
    hvd = _horovod()
    if not hvd.is_initialized():
        raise ValueError(
            "Horovod is not initialized: call hvd.init() (import horovod.tensorflow as hvd)"
            " before the first training step, and start the script under a launcher:"
            " tf-libra run -np 2 python train.py"
        )
    return World(rank=hvd.rank(), size=hvd.size(), local_size=hvd.local_size())


def internal_error(message: str) -> Exception:
    """What Horovod's own collectives raise, and its elastic mode recovers from."""
    from horovod.common.exceptions import HorovodInternalError

    return HorovodInternalError(message)


def is_elastic() -> bool:
    """Whether this is called from within a function that `hvd.elastic.run` runs."""
    return bool(_elastic_states())


def call_on_reset(callback: Callable[[], None]) -> None:
    """Has `callback` called whenever elastic mode has reset Horovod; no matter outside of it."""
    for state in _elastic_states():
        # A state outlives resets.
        if callback not in state._reset_callbacks:
            state.register_reset_callbacks([callback])


def _elastic_states() -> list[Any]:
    """The states that `hvd.elastic.run` keeps informed of other hosts: one, while it runs."""
    elastic = sys.modules.get("horovod.common.elastic")
    return [] if elastic is None else list(elastic.notification_manager._listeners)


def start_engine(
    world: World, num_lanes: int, timeout_seconds: float, stall_warning_seconds: float
) -> engine_lib.Engine:
    """Lets all ranks meet through Horovod and connects their lanes.

    Where ranks ask for different numbers of lanes all get the most, so that the lanes can carry
    what the ranks differ in.

    Raises:
        ValueError: no network interface can be chosen.
        engine_lib.EngineError: a rank cannot be reached in time.
    """
    meeting = _meet(world, num_lanes, exchange_json)
    return engine_lib.connect(
        world.rank,
        meeting.addresses,
        meeting.secret,
        meeting.num_lanes,
        timeout_seconds,
        stall_warning_seconds,
    )


def grow_engine(world: World, engine: engine_lib.Engine, num_lanes: int) -> engine_lib.Engine:
    """Connects more lanes, where every rank asks for as many at the same place of its script.

    Raises:
        ValueError: no network interface can be chosen.
        engine_lib.EngineError: a rank cannot be reached in time, or has given up.
    """
    meeting = _meet(world, num_lanes, engine.all_gather)
    return engine.grow(meeting.addresses, meeting.secret, meeting.num_lanes)


@dataclass(frozen=True)
class _Meeting:
    """Where all ranks listen, what they know each other by, and how many lanes they connect."""

    addresses: list[engine_lib.Address]
    secret: bytes
    num_lanes: int


def _meet(
    world: World, num_lanes: int, exchange: Callable[[dict[str, Any]], list[dict[str, Any]]]
) -> _Meeting:
    """Listens, and tells the others where."""
    address = engine_lib.listen(listening_host(world), listening_ports())
    secret = os.urandom(engine_lib.SECRET_BYTES)
    mine = {
        "host": address.host,
        "port": address.port,
        # Only rank 0's is used.
        "secret": base64.b64encode(secret).decode() if world.rank == 0 else "",
        "num_lanes": num_lanes,
    }
    everyone = exchange(mine)
    return _Meeting(
        [engine_lib.Address(one["host"], one["port"]) for one in everyone],
        base64.b64decode(everyone[0]["secret"]),
        max(one["num_lanes"] for one in everyone),
    )


def listening_host(world: World) -> str:
    """The address to listen on: a Unix socket on a single host, else that of an interface.

    TF_LIBRA_INTERFACE names the interface, else Horovod does. Named, it is used on one host too.

    Raises:
        ValueError: several hosts, and no interface is named in the environment.
    """
    interface = os.environ.get("TF_LIBRA_INTERFACE")
    if interface is None and world.local_size == world.size:
        return engine_lib.UNIX
    # horovodrun may name several, separated by commas; Gloo takes the first.
    interface = interface or os.environ.get("HOROVOD_GLOO_IFACE", "").split(",")[0]
    if not interface:
        raise ValueError(
            "the workers run on several hosts, and neither TF_LIBRA_INTERFACE nor"
            " HOROVOD_GLOO_IFACE names the network interface between them (such as eth0)"
        )
    return engine_lib.interface_address(interface)


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


def broadcast_variables(variables: list[Any]) -> None:
    """Copies rank 0's values of these `tf.Variable`s to all ranks, by Horovod itself."""
    _horovod().broadcast_variables(variables, root_rank=0)


def exchange_json(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Every rank's message, by rank, over Horovod."""
    import numpy as np
    import tensorflow as tf

    hvd = _horovod()
    payload = np.frombuffer(json.dumps(message).encode() + b"\n", dtype=np.uint8)
    with tf.device("/cpu:0"):
        gathered = hvd.allgather(tf.constant(payload), name="tf_libra.rendezvous")
    lines = gathered.numpy().tobytes().decode().splitlines()
    return [json.loads(line) for line in lines]
