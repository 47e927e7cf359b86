"""What `engine="auto"` decides, and why."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_libra.backends.job import World

# Of which one is chosen.
ENGINES = ("lanes", "horovod")
_FABRICS = Path("/sys/class/infiniband")
# What a rank needs beside its connections: files, TensorFlow's and Horovod's own.
_SPARE_DESCRIPTORS = 256
# Of which a rank has at most so many (ops/lanes/tree.h).
_CONTROL_CONNECTIONS = 9


@dataclass(frozen=True)
class Circumstances:
    """What the choice depends on, as far as a rank knows.

    Attributes:
        world_size: number of ranks.
        num_hosts: that they run on, at least.
        num_gpus: that TensorFlow may use in this process.
        has_nccl: whether Horovod was built with NCCL.
        on_mpi: whether Horovod runs on MPI.
        names_interface: whether the environment says by which interface ranks reach each other.
        fabrics: devices of this host that MPI can use and TCP cannot, such as InfiniBand's.
        num_lanes: threads that all-reduces will ask for.
        most_descriptors: that this process may have.
    """

    world_size: int
    num_hosts: int = 1
    num_gpus: int = 0
    has_nccl: bool = False
    on_mpi: bool = False
    names_interface: bool = True
    fabrics: tuple[str, ...] = ()
    num_lanes: int = 1
    most_descriptors: int = 1 << 20


def choose(found: Circumstances) -> tuple[str, str]:
    """The name of the engine, and why in a few words.

    Lanes are what is faster on CPUs wherever both were measured (docs/benchmarks.md); what is left
    to Horovod is what lanes cannot do, or not without a copy.
    """
    if found.num_gpus and found.has_nccl:
        return "horovod", "gradients live on GPUs, and Horovod has NCCL"
    if found.num_hosts > 1 and found.on_mpi:
        if found.fabrics:
            return "horovod", f"Horovod runs on MPI, which can use {', '.join(found.fabrics)}"
        if not found.names_interface:
            return "horovod", (
                "Horovod runs on MPI, and no interface is named for lanes (TF_LIBRA_INTERFACE)"
            )
    # To each other rank: a connection per lane, one for messages, and a watched one.
    needed = (found.world_size - 1) * (found.num_lanes + 2)
    needed += _CONTROL_CONNECTIONS + _SPARE_DESCRIPTORS
    if needed > found.most_descriptors:
        return "horovod", (
            f"lanes between {found.world_size} ranks need {needed:,} descriptors, and a process may"
            f" have {found.most_descriptors:,} (ulimit -n)"
        )
    if found.num_gpus:
        return "lanes", "Horovod was built without NCCL, and both copy gradients to the host"
    if found.num_hosts == 1:
        return "lanes", "all ranks run on CPUs of one host"
    return "lanes", f"ranks run on CPUs of {found.num_hosts} hosts, over TCP"


def circumstances(world: World, num_lanes: int) -> Circumstances:
    """What this process finds.

    Args:
        world: the job.
        num_lanes: threads that all-reduces will ask for.
    """
    import horovod.tensorflow as hvd
    import tensorflow as tf

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    named = os.environ.get("TF_LIBRA_INTERFACE") or os.environ.get("HOROVOD_GLOO_IFACE")
    return Circumstances(
        world_size=world.size,
        num_hosts=-(-world.size // max(world.local_size, 1)),
        num_gpus=len(tf.config.get_visible_devices("GPU")),
        has_nccl=bool(hvd.nccl_built()),
        on_mpi=bool(hvd.mpi_enabled()),
        names_interface=bool(named),
        fabrics=tuple(sorted(one.name for one in _FABRICS.glob("*"))),
        num_lanes=num_lanes,
        most_descriptors=1 << 30 if most == resource.RLIM_INFINITY else most,
    )
