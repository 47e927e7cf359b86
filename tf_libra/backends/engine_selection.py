"""Choice of `engine="auto"` and its reason, the same on all ranks, from what each rank finds."""

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

# Of which one is chosen.
ENGINES = ("lanes", "horovod")
_FABRICS = Path("/sys/class/infiniband")
# Descriptors that a rank needs in addition to its connections: files, TensorFlow's, Horovod's.
_SPARE_DESCRIPTORS = 256
# Of which a rank has at most so many (ops/lanes/tree.h).
_CONTROL_CONNECTIONS = 9


# Control wakes by one, messages by another, which they wait for in a set.
_WATCHES = 3


@dataclass(frozen=True)
class EngineEnvironment(Value):
    """Facts that the choice depends on, as one rank finds them. All fields are JSON values.

    Attributes:
        local_size: number of ranks on its host.
        machine: what is the same for ranks that reach each other by Unix sockets; "": not known.
        num_gpus: that TensorFlow may use in this process.
        has_nccl: whether Horovod was built with NCCL.
        on_mpi: whether Horovod runs on MPI.
        interface: that the environment names for lanes alone, which are on TCP then on one host,
            too; "": none.
        names_interface: whether it says by which interface ranks reach each other.
        fabrics: devices of this host that MPI can use and TCP cannot, such as InfiniBand's.
        num_lanes: threads that all-reduces will ask for.
        most_descriptors: that this process may have.
        only_lanes: why only lanes can do what this rank requests; "": Horovod can do it as well.
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
    """The name of the engine, and why in a few words.

    Lanes are what is faster on CPUs wherever both were measured (docs/benchmarks.md); what is left
    to Horovod is what lanes cannot do, or not without a copy, where all ranks are able to.

    Args:
        ranks: what each rank of the job finds.
    """
    engine, why = _preferred(ranks)
    bound = _first(ranks, lambda one: bool(one.only_lanes))
    if engine != "lanes" and bound is not None:
        return "lanes", f"{engine} cannot (on rank {bound}: {ranks[bound].only_lanes})"
    return engine, why


def _preferred(ranks: Sequence[EngineEnvironment]) -> tuple[str, str]:
    """Does the same as `choose`, but ignores `only_lanes`."""
    num_hosts = _num_hosts(ranks)
    has_gpus, has_nccl = (
        any(one.num_gpus for one in ranks),
        all(one.has_nccl for one in ranks),
    )
    without_gpu = _first(ranks, lambda one: not one.num_gpus)
    if has_nccl and has_gpus and without_gpu is None:
        return "horovod", "gradients live on GPUs, and Horovod has NCCL"
    less = ""
    if num_hosts > 1 and all(one.on_mpi for one in ranks):
        fabrics = sorted({name for one in ranks for name in one.fabrics})
        without_fabric = _first(ranks, lambda one: not one.fabrics)
        if fabrics and without_fabric is None:
            return "horovod", f"Horovod runs on MPI, which can use {', '.join(fabrics)}"
        if fabrics:
            less = f"; the host of rank {without_fabric} has no fabric for MPI"
        unnamed = _first(ranks, lambda one: not one.names_interface)
        if unnamed is not None:
            where = f" on rank {unnamed}" if any(one.names_interface for one in ranks) else ""
            return "horovod", (
                "Horovod runs on MPI, and no interface is named for lanes"
                f" (TF_LIBRA_INTERFACE){where}"
            )
    if (short := _too_few_descriptors(ranks)) is not None:
        return "horovod", short
    if has_gpus and without_gpu is not None:
        return "lanes", f"rank {without_gpu} has no GPU, and so Horovod's NCCL cannot reach it"
    if has_gpus:
        built = _first(ranks, lambda one: not one.has_nccl)
        where = f" on rank {built}" if any(one.has_nccl for one in ranks) else ""
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
    """The lowest rank that is so."""
    return next((rank for rank, one in enumerate(ranks) if wanted(one)), None)


def _on_one_host(ranks: Sequence[EngineEnvironment]) -> bool:
    return all(one.local_size == len(ranks) for one in ranks)


def _num_hosts(ranks: Sequence[EngineEnvironment]) -> int:
    """Returns the least number of hosts that the ranks can run on."""
    if _on_one_host(ranks):
        return 1
    machines = {one.machine for one in ranks}
    if "" not in machines:
        return len(machines)
    return -(-len(ranks) // max(one.local_size for one in ranks))


def _too_few_descriptors(ranks: Sequence[EngineEnvironment]) -> str | None:
    """Names the rank that may open too few descriptors for lanes; None if there is no such rank."""
    for rank, (one, needed) in enumerate(zip(ranks, connections(ranks), strict=True)):
        if needed + _SPARE_DESCRIPTORS > one.most_descriptors:
            return (
                f"lanes between {len(ranks)} ranks need {needed + _SPARE_DESCRIPTORS:,}"
                f" descriptors, and rank {rank} may have {one.most_descriptors:,} (ulimit -n)"
            )
    return None


def connections(ranks: Sequence[EngineEnvironment]) -> list[int]:
    """The descriptors that lanes take on each rank, at most (ops/lanes/connection_ids.h).

    To every other rank one for messages, and a watched one where that is on another machine or
    reached by TCP; to those with which a rank exchanges one for each lane: on a grid, those of its
    row and of its column, which are those of its host and of its place on the others, or hosts of
    one rank as a square, else all (ops/lanes/grid.h); to its neighbours in the tree one for
    control; and each lane has a watch for those of a row or column, control and messages have
    theirs.
    """
    size, lanes = len(ranks), max(one.num_lanes for one in ranks)
    control = min(size - 1, _CONTROL_CONNECTIONS) + _WATCHES
    if _on_one_host(ranks):
        linked = [size - 1 if one.interface else 0 for one in ranks]
        return [size - 1 + links + control + lanes * size for links in linked]
    of_machine = Counter(one.machine for one in ranks)
    if "" in of_machine:  # then nothing is known of hosts
        return [2 * (size - 1) + control + lanes * size] * size
    counts = [of_machine[one.machine] for one in ranks]
    row = row_of_square(size) if max(counts) == 1 else counts[0]
    if row and len(of_machine) > 1 and min(counts) == max(counts):
        met, watches = row - 1 + size // row - 1, 2
    else:
        met, watches = size - 1, 1
    return [size - 1 + size - here + control + lanes * (met + watches) for here in counts]


def circumstances(world: World, num_lanes: int, only_lanes: str = "") -> EngineEnvironment:
    """Returns the facts that this process finds.

    Args:
        world: the job.
        num_lanes: threads that all-reduces will ask for.
        only_lanes: why Horovod cannot do what was requested; "": it can.
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
        fabrics=tuple(sorted(one.name for one in _FABRICS.glob("*"))),
        num_lanes=num_lanes,
        most_descriptors=1 << 30 if most == resource.RLIM_INFINITY else most,
        only_lanes=only_lanes,
    )
