"""The ranks of a job, as one of them sees them."""

from dataclasses import dataclass


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
