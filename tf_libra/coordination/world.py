"""The ranks of a job from one rank's view, and the identity of its host."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class World:
    """The ranks of a job.

    Attributes:
        rank: rank of this process, from 0.
        size: number of processes.
        local_size: number of processes on this host.
        host: name or address of this host for the other ranks; "" if it is unknown.
        job: number of the job in this process, from 0. The ranks of the next job are other
            processes, even if this process has the same rank in both.
    """

    rank: int
    size: int
    local_size: int
    host: str = ""
    job: int = 0


def local_rank_and_size(machines: Sequence[str], rank: int) -> tuple[int, int]:
    """Returns the rank of a process among those of its host, and their number.

    Args:
        machines: keys by rank, equal for ranks of one host.
        rank: rank of the process in the job.
    """
    here = [other for other, machine in enumerate(machines) if machine == machines[rank]]
    return here.index(rank), len(here)


def cores_per_worker(local_size: int) -> int:
    """Returns the cores that this process is bound to, or else its share of those of the job.

    Launchers that bind workers keep more cores for themselves. Cores that a worker inherits, such
    as those of a container, belong to all workers of this host.

    Args:
        local_size: number of ranks on this host.
    """
    bound = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # the parent has ended
        if bound < os.sched_getaffinity(os.getppid()):
            return len(bound)
    return max(len(bound) // local_size, 1)


def host_identity() -> str:
    """Returns a key that is equal for ranks that can connect by Unix sockets; "" if unknown.

    Socket names belong to a network namespace, so two containers on one host have different keys.
    """
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{started}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""
