"""Selection of the engine for `engine="auto"`, from the environments of all ranks."""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_libra.coordination.world import World, host_identity
from tf_libra.cost_model.base import row_of_square
from tf_libra.internal.values import Value

# Candidates of `engine="auto"`.
ENGINES = ("lanes", "horovod")
_FABRICS = Path("/sys/class/infiniband")
# File descriptors beyond a rank's connections: files, TensorFlow, Horovod.
_SPARE_DESCRIPTORS = 256
# Upper bound of a rank's neighbours in the control tree (ops/lanes/tree.h).
_CONTROL_CONNECTIONS = 9


# Descriptors that wake the control and message threads, and the set that they poll.
_WATCHES = 3


@dataclass(frozen=True)
class EngineEnvironment(Value):
    """Environment of one rank, as far as the selection depends on it. All fields are JSON values.

    Attributes:
        local_size: number of ranks on this rank's host.
        machine: identity shared by ranks that can connect by Unix sockets; "": unknown.
        num_gpus: number of GPUs visible to TensorFlow in this process.
        has_nccl: whether Horovod was built with NCCL.
        on_mpi: whether Horovod runs on MPI.
        interface: network interface that the environment names for lanes alone; lanes then use
            TCP on a single host as well. "": none.
        names_interface: whether the environment names the interface between ranks.
        fabrics: devices of this host that MPI can use and TCP cannot, such as InfiniBand.
        num_lanes: number of threads that all-reduces request.
        most_descriptors: limit of open file descriptors of this process.
        only_lanes: why only lanes support this rank's request; "": Horovod supports it too.
    """

    local_size: int
    machine: str = ""
    num_gpus: int = 0
    has_nccl: bool = False
    on_mpi: bool = False
    interface: str = ""
    names_interface: bool = True
    fabrics: tuple[str, ...] = ()
    num_lanes: int = 1
    most_descriptors: int = 1 << 20
    only_lanes: str = ""


def choose(ranks: Sequence[EngineEnvironment]) -> tuple[str, str]:
    """Returns the name of the engine, and the reason.

    Lanes are faster on CPUs in every measured case (docs/benchmarks.md). Horovod is chosen for
    transfers that lanes cannot do, or only with a copy, if all ranks support them.

    Args:
        ranks: the environment of each rank.
    """
    engine, why = _preferred(ranks)
    bound = _first(ranks, lambda rank: bool(rank.only_lanes))
    if engine != "lanes" and bound is not None:
        return "lanes", f"{engine} cannot (on rank {bound}: {ranks[bound].only_lanes})"
    return engine, why


def _preferred(ranks: Sequence[EngineEnvironment]) -> tuple[str, str]:
    """Returns the choice and its reason, regardless of `only_lanes`."""
    num_hosts = _num_hosts(ranks)
    has_gpus, has_nccl = (
        any(rank.num_gpus for rank in ranks),
        all(rank.has_nccl for rank in ranks),
    )
    without_gpu = _first(ranks, lambda rank: not rank.num_gpus)
    if has_nccl and has_gpus and without_gpu is None:
        return "horovod", "gradients live on GPUs, and Horovod has NCCL"
    less = ""
    if num_hosts > 1 and all(rank.on_mpi for rank in ranks):
        fabrics = sorted({name for rank in ranks for name in rank.fabrics})
        without_fabric = _first(ranks, lambda rank: not rank.fabrics)
        if fabrics and without_fabric is None:
            return "horovod", f"Horovod runs on MPI, which can use {', '.join(fabrics)}"
        if fabrics:
            less = f"; the host of rank {without_fabric} has no fabric for MPI"
        unnamed = _first(ranks, lambda rank: not rank.names_interface)
        if unnamed is not None:
            where = f" on rank {unnamed}" if any(rank.names_interface for rank in ranks) else ""
            return "horovod", (
                "Horovod runs on MPI, and no interface is named for lanes"
                f" (TF_LIBRA_INTERFACE){where}"
            )
    if (short := _too_few_descriptors(ranks)) is not None:
        return "horovod", short
    if has_gpus and without_gpu is not None:
        return "lanes", f"rank {without_gpu} has no GPU, and so Horovod's NCCL cannot reach it"
    if has_gpus:
        built = _first(ranks, lambda rank: not rank.has_nccl)
        where = f" on rank {built}" if any(rank.has_nccl for rank in ranks) else ""
        return (
            "lanes",
            f"Horovod was built without NCCL{where}, and both copy gradients to the host",
        )
    if num_hosts == 1:
        return "lanes", "all ranks run on CPUs of one host"
    return "lanes", f"ranks run on CPUs of {num_hosts} hosts, over TCP{less}"


def _first(
    ranks: Sequence[EngineEnvironment], wanted: Callable[[EngineEnvironment], bool]
) -> int | None:
    """Returns the lowest rank whose environment meets the condition, or None."""
    return next((rank for rank, facts in enumerate(ranks) if wanted(facts)), None)


def _on_one_host(ranks: Sequence[EngineEnvironment]) -> bool:
    return all(rank.local_size == len(ranks) for rank in ranks)


def _num_hosts(ranks: Sequence[EngineEnvironment]) -> int:
    """Returns the least number of hosts that the ranks can run on."""
    if _on_one_host(ranks):
        return 1
    machines = {rank.machine for rank in ranks}
    if "" not in machines:
        return len(machines)
    return -(-len(ranks) // max(rank.local_size for rank in ranks))


def _too_few_descriptors(ranks: Sequence[EngineEnvironment]) -> str | None:
    """Returns an error text if a rank may open too few descriptors for lanes, else None."""
    for rank, (facts, needed) in enumerate(zip(ranks, connections(ranks), strict=True)):
        if needed + _SPARE_DESCRIPTORS > facts.most_descriptors:
            return (
                f"lanes between {len(ranks)} ranks need {needed + _SPARE_DESCRIPTORS:,}"
                f" descriptors, and rank {rank} may have {facts.most_descriptors:,} (ulimit -n)"
            )
    return None


def connections(ranks: Sequence[EngineEnvironment]) -> list[int]:
    """Returns each rank's upper bound of descriptors for lanes (ops/lanes/connection_ids.h).

    A rank needs:

    - one message connection to every other rank;
    - one monitored connection to every rank on another machine or reached by TCP;
    - one connection per lane to each exchange peer: the ranks of its row and column on a grid
      (ops/lanes/grid.h), else all ranks;
    - one control connection to each neighbour in the tree;
    - one watch per lane and grid dimension, and the watches of control and messages.
    """
    size, lanes = len(ranks), max(rank.num_lanes for rank in ranks)
    control = min(size - 1, _CONTROL_CONNECTIONS) + _WATCHES
    if _on_one_host(ranks):
        linked = [size - 1 if rank.interface else 0 for rank in ranks]
        return [size - 1 + links + control + lanes * size for links in linked]
    of_machine = Counter(rank.machine for rank in ranks)
    if "" in of_machine:  # hosts are unknown
        return [2 * (size - 1) + control + lanes * size] * size
    counts = [of_machine[rank.machine] for rank in ranks]
    row = row_of_square(size) if max(counts) == 1 else counts[0]
    if row and len(of_machine) > 1 and min(counts) == max(counts):
        num_peers, watches = row - 1 + size // row - 1, 2
    else:
        num_peers, watches = size - 1, 1
    return [size - 1 + size - here + control + lanes * (num_peers + watches) for here in counts]


def circumstances(world: World, num_lanes: int, only_lanes: str = "") -> EngineEnvironment:
    """Returns the environment of this process.

    Args:
        world: the job.
        num_lanes: number of threads that all-reduces request.
        only_lanes: why Horovod does not support the request; "": it does.
    """
    import horovod.tensorflow as hvd
    import tensorflow as tf

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = os.environ.get("TF_LIBRA_INTERFACE", "")
    return EngineEnvironment(
        local_size=world.local_size,
        machine=host_identity(),
        num_gpus=len(tf.config.get_visible_devices("GPU")),
        has_nccl=bool(hvd.nccl_built()),
        on_mpi=bool(hvd.mpi_enabled()),
        interface=own,
        names_interface=bool(own or os.environ.get("HOROVOD_GLOO_IFACE")),
        fabrics=tuple(sorted(path.name for path in _FABRICS.glob("*"))),
        num_lanes=num_lanes,
        most_descriptors=1 << 30 if most == resource.RLIM_INFINITY else most,
        only_lanes=only_lanes,
    )
