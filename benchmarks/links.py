"""Counts what an all-reduce sends over each host's link, and each rank's connections for it.

Counted on real ranks on hosts that are pretended (`benchmarks/scaling.cc`): those of one host share
memory, and all that goes to others goes over TCP, where the kernel counts it by connection.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scaling import CONNECTIONS, Rank, run_ranks


@dataclass(frozen=True)
class Counted:
    """A job of real ranks.

    Attributes:
        num_hosts: at least 2, with as many ranks each.
        ranks_per_host: at least 1.
        num_bytes: that were all-reduced.
        is_grid: whether ranks know of hosts; otherwise each exchanges with every other one.
        connections: the most of a rank, by what they are for.
        sent: [host], bytes that its ranks have sent to those of others.
        received: [host], bytes that its ranks have received from those of others.
    """

    num_hosts: int
    ranks_per_host: int
    num_bytes: int
    is_grid: bool
    connections: dict[str, int]
    sent: tuple[int, ...]
    received: tuple[int, ...]

    @property
    def ring_bytes(self) -> float:
        """Bytes that a ring over all ranks, host by host, sends over each host's link one way."""
        num_ranks = self.num_hosts * self.ranks_per_host
        return 2 * (num_ranks - 1) / num_ranks * self.num_bytes

    @property
    def of_ring(self) -> float:
        """The busiest link's bytes, in its busier direction, as a share of a ring's."""
        return max(*self.sent, *self.received) / self.ring_bytes


def count(
    program: Path,
    num_hosts: int,
    ranks_per_host: int,
    num_lanes: int,
    num_bytes: int,
    is_grid: bool,
) -> Counted:
    """Runs a job, and counts.

    Args:
        program: built from `scaling.cc`.
        num_hosts: at least 2.
        ranks_per_host: at least 1.
        num_lanes: of each rank.
        num_bytes: that are all-reduced.
        is_grid: whether ranks know of hosts.

    Raises:
        RuntimeError: a rank has failed; its own words are on standard error.
    """
    known = ranks_per_host if is_grid else 0
    ranks = run_ranks(
        program,
        num_hosts * ranks_per_host,
        num_lanes,
        ranks_per_host=known,
        num_bytes=num_bytes,
    )

    def over_links(traffic: Callable[[Rank], Sequence[int]]) -> tuple[int, ...]:
        totals = [0] * num_hosts
        for number, rank in enumerate(ranks):
            for other, moved in enumerate(traffic(rank)):
                if other // ranks_per_host != number // ranks_per_host:
                    totals[number // ranks_per_host] += moved
        return tuple(totals)

    return Counted(
        num_hosts,
        ranks_per_host,
        num_bytes,
        is_grid,
        {name: max(rank.connections[name] for rank in ranks) for name in CONNECTIONS},
        over_links(lambda rank: rank.sent),
        over_links(lambda rank: rank.received),
    )


def table(counted: Sequence[Counted]) -> str:
    """All of it, as Markdown."""
    lines = [
        "| hosts | ranks of each | exchange | "
        + " | ".join(CONNECTIONS)
        + " | MB sent over a link | MB received | of a ring |",
        "|--:|--:|---|" + "--:|" * (len(CONNECTIONS) + 3),
    ]
    for link in counted:
        cells = [
            str(link.num_hosts),
            str(link.ranks_per_host),
            "grid" if link.is_grid else "direct",
            *(str(link.connections[name]) for name in CONNECTIONS),
            f"{max(link.sent) / 1e6:.3f}",
            f"{max(link.received) / 1e6:.3f}",
            f"{link.of_ring:.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
