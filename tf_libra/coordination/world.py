"""The ranks of a job, as one of them sees them."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class World:
    """The ranks of a job.

    Attributes:
        rank: this process, from 0.
        size: number of processes.
        local_size: number of processes on this host.
        host: name or address by which the others know this one's host; "" if it is unknown.
        job: the number of the job among those of this process, from 0: the ranks of the next are
            other processes, even where this one is the same rank of as many.
    """

    rank: int
    size: int
    local_size: int
    host: str = ""
    job: int = 0


def host_identity() -> str:
    """Returns what ranks share that reach each other by Unix sockets; "" if it is unknown.

    The names of such sockets are those of a network namespace, so two containers of one host are
    two machines.
    """
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{started}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""
