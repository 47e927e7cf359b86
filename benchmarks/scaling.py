"""Scaling of lanes: python -m benchmarks.scaling [--ranks 16,32,64,128,256] [--lanes R].

Starts that many real rank processes on this machine, without TensorFlow or Python
(`benchmarks/scaling.cc`): they listen, learn each other's addresses from this program, connect,
agree and all-reduce 1 KiB, and check what comes of both. No rank knows of hosts, so all exchange
with all; `--ranks_per_host` lets them be a grid, or a square of hosts of one (ops/lanes/grid.h).
Reported are, per number of ranks,

- set-up: seconds from the first address until the last rank has all its connections and lanes;
- agreed, all-reduced: seconds until the last rank has all-gathered a message, and all-reduced;
- descriptors: the most that a rank has opened for that;
- memory: the most resident bytes that a rank has more than before;
- CPU: the most seconds of a core that a rank has needed for its set-up.

Then a simulation of what follows for more ranks (`simulated_seconds`), each on a core of its own,
and on the cores of this machine. Its one unknown, the seconds that a connection takes a core at
each end, comes from the smallest job; its results for the larger ones are printed next to the
measured ones. Descriptors and memory are continued in a straight line, which says too much of a
square, whose lanes grow with the root of the number of ranks.
"""

import contextlib
import functools
import json
import os
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from absl import app, flags

from benchmarks import native

SIMULATED = (256, 512, 1024, 2048)
# kMaxConnecting of ops/lanes/connector.cc.
MAX_CALLS_AT_A_TIME = 8
# What a rank's connections are for; on those that are watched nothing is sent.
CONNECTIONS = ("lanes", "messages", "watched", "control")


@dataclass(frozen=True)
class Measured:
    """A job of real ranks.

    Attributes:
        num_ranks: processes.
        setup_seconds: until the last rank was connected.
        agreed_seconds: until the last rank had everybody's message.
        reduced_seconds: until the last rank had the sum.
        descriptors: opened by the rank that opened most.
        memory_bytes: of the rank that took most.
        setup_cpu_seconds: of a core, of the rank that took most to be connected.
    """

    num_ranks: int
    setup_seconds: float
    agreed_seconds: float
    reduced_seconds: float
    descriptors: int
    memory_bytes: int
    setup_cpu_seconds: float


@dataclass(frozen=True)
class Rank:
    """Measurements of one rank of a job.

    Attributes:
        setup_seconds: until it was connected.
        agreed_seconds: until it had everybody's message.
        reduced_seconds: until it had the sum.
        descriptors: that it has opened.
        memory_bytes: resident ones that it has more than before.
        setup_cpu_seconds: of a core, until it was connected.
        connections: how many it has, by what they are for (`CONNECTIONS`).
        sent: [rank], bytes that went to that one over TCP once it was connected, as counted by the
            kernel: of the all-reduce, and the few of agreements.
        received: [rank], the same for bytes that came from that one.
    """

    setup_seconds: float
    agreed_seconds: float
    reduced_seconds: float
    descriptors: int
    memory_bytes: int
    setup_cpu_seconds: float
    connections: dict[str, int]
    sent: tuple[int, ...]
    received: tuple[int, ...]


def measure(
    program: Path, num_ranks: int, num_lanes: int, host: str, ranks_per_host: int = 0
) -> Measured:
    """Runs a job that all-reduces 1 KiB; arguments and errors as of `job`."""
    ranks = run_ranks(program, num_ranks, num_lanes, host, ranks_per_host)
    names = [field.name for field in fields(Measured) if field.name != "num_ranks"]
    return Measured(num_ranks, **{name: max(getattr(r, name) for r in ranks) for name in names})


def run_ranks(
    program: Path,
    num_ranks: int,
    num_lanes: int,
    host: str = "127.0.0.1",
    ranks_per_host: int = 0,
    num_bytes: int = 1024,
) -> list[Rank]:
    """Runs a job; what its ranks have found, in their order. Arguments and errors as of `job`."""
    with job(program, num_ranks, num_lanes, host, ranks_per_host, num_bytes=num_bytes) as running:
        return running.ranks


@dataclass(frozen=True)
class Job:
    """Ranks that have met and all-reduced once.

    Attributes:
        ranks: what they have found, in their order.
    """

    ranks: list[Rank]
    _processes: "Sequence[subprocess.Popen[str]]"

    def time(self, num_bytes: int, repetitions: int) -> list[tuple[float, float]]:
        """Measures `repetitions` all-reduces; returns mean wall and core seconds of each rank.

        Raises:
            RuntimeError: a rank has failed; its own words are on standard error.
        """
        _tell(self._processes, f"{num_bytes} {repetitions}\n")
        timed = [_line(rank).split() for rank in self._processes]
        _check(is_right for *_, is_right in timed)
        return [(float(seconds), float(cpu_seconds)) for seconds, cpu_seconds, _ in timed]


@contextlib.contextmanager
def job(
    program: Path,
    num_ranks: int,
    num_lanes: int,
    host: str = "127.0.0.1",
    ranks_per_host: int = 0,
    local_sockets: bool = True,
    num_bytes: int = 1024,
) -> Iterator[Job]:
    """Runs a job, which ends with the context.

    Args:
        program: built from `scaling.cc`.
        num_ranks: processes.
        num_lanes: of each.
        host: where they listen; `unix:` for Unix sockets.
        ranks_per_host: so many take each other to be on one host; 0: no rank knows of hosts.
        local_sockets: True if ranks of a host also listen on Unix sockets and share
            memory. Else they exchange over `host`, in two levels all the same, as do the rows of a
            square of hosts that have one rank each (ops/lanes/grid.h).
        num_bytes: that are all-reduced once they have met, by all lanes.

    Raises:
        RuntimeError: a rank has failed; its own words are on standard error.
    """
    listens_locally = int(local_sockets and ranks_per_host > 0)
    shape = (num_ranks, num_lanes, host, ranks_per_host, listens_locally, num_bytes)
    ranks = [
        subprocess.Popen(
            [program, *map(str, (rank, *shape))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_ranks)
    ]
    try:
        _tell(ranks, "".join(_line(rank) for rank in ranks))
        found = [[_line(rank).split() for _ in range(4)] for rank in ranks]
        _check(figures[6] for figures, *_ in found)
        yield Job([_rank(*lines) for lines in found], ranks)
        for rank in ranks:
            rank.communicate()  # ends its input, and so itself
        _check("0" if rank.returncode else "1" for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _tell(ranks: "Sequence[subprocess.Popen[str]]", text: str) -> None:
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write(text)
        rank.stdin.flush()


def _check(are_right: Iterable[str]) -> None:
    """Raises an error unless every rank reports "1", a correct result."""
    if any(report != "1" for report in are_right):
        raise RuntimeError("a rank has not come to what is right")


def _rank(
    figures: Sequence[str], connections: Sequence[str], sent: Sequence[str], received: Sequence[str]
) -> Rank:
    return Rank(
        setup_seconds=float(figures[0]),
        agreed_seconds=float(figures[1]),
        reduced_seconds=float(figures[2]),
        descriptors=int(figures[3]),
        memory_bytes=int(figures[4]),
        setup_cpu_seconds=float(figures[5]),
        connections=dict(zip(CONNECTIONS, map(int, connections), strict=True)),
        sent=tuple(map(int, sent)),
        received=tuple(map(int, received)),
    )


def _line(rank: "subprocess.Popen[str]") -> str:
    assert rank.stdout is not None
    line = rank.stdout.readline()
    if not line:
        raise RuntimeError(f"a rank has ended with {rank.wait()}")
    return line


def simulated_seconds(num_ranks: int, per_peer_seconds: float, num_cores: int) -> float:
    """Simulates set-up by ranks that call all lower ones, several at a time, and accept.

    Where there are fewer cores than ranks, all that they do has to go through these as well.

    Args:
        num_ranks: at least 1.
        per_peer_seconds: of one core at each end, for all connections between two ranks.
        num_cores: that the ranks share.
    """
    work = num_ranks * (num_ranks - 1)  # both ends of each pair
    return max(_turns(num_ranks), work / num_cores) * per_peer_seconds


@functools.cache
def _turns(num_ranks: int) -> int:
    """The same where each rank has a core of its own, in units of what a peer takes at one end.

    As in `ops/lanes/connector.cc` and `mesh.cc`: a rank calls the lower ones in their order, so
    many at a time, and goes on to the next when one of them has accepted. Meanwhile it accepts, in
    the order in which it is called; a rank that has too few to call for a thread calls them first.
    What a rank has to do, on either side, goes through its core in the order in which it comes up.
    """
    # By rank: a lower one that it calls, or a higher one that it accepts.
    to_do: list[deque[int]] = [deque() for _ in range(num_ranks)]
    next_called = [max(1, _calls_at_a_time(rank)) for rank in range(num_ranks)]
    for rank in range(1, num_ranks):
        to_do[rank].extend(range(next_called[rank]))
    missed_by = list(range(num_ranks))  # as many as have not yet accepted a rank
    waiting: list[list[int]] = [[] for _ in range(num_ranks)]  # for a rank that calls first
    missing = num_ranks * (num_ranks - 1) // 2
    turns = 0
    while missing:
        turns += 1
        arrived: list[tuple[int, int]] = []
        for rank, tasks in enumerate(to_do):
            if not tasks:
                continue
            other = tasks.popleft()
            if other < rank:
                if missed_by[other] and not _calls_at_a_time(other):
                    waiting[other].append(rank)
                else:
                    arrived.append((other, rank))
                continue
            missing -= 1
            missed_by[other] -= 1
            if not missed_by[other]:
                arrived.extend((other, caller) for caller in waiting[other])
                waiting[other].clear()
            if next_called[other] < other:
                arrived.append((other, next_called[other]))
                next_called[other] += 1
        for rank, other in arrived:
            to_do[rank].append(other)
    return turns


def _calls_at_a_time(rank: int) -> int:
    """Returns the number of threads of a rank for its calls; 0: it calls before it accepts."""
    return min(MAX_CALLS_AT_A_TIME, rank // 2)


def fitted(smallest: Measured, num_cores: int) -> float:
    """The seconds per peer by which the simulation takes as long as this job; it is linear."""
    return smallest.setup_seconds / simulated_seconds(smallest.num_ranks, 1.0, num_cores)


def continued(measured: Sequence[Measured], name: str, num_ranks: int) -> float:
    """Extrapolates an attribute of a rank linearly to a larger number of ranks.

    Args:
        measured: jobs of at least two sizes.
        name: attribute of `Measured`.
        num_ranks: of the larger job.
    """
    first, last = measured[0], measured[-1]
    slope = (getattr(last, name) - getattr(first, name)) / (last.num_ranks - first.num_ranks)
    return float(getattr(last, name) + slope * (num_ranks - last.num_ranks))


def table(
    measured: Sequence[Measured], num_cores: int, simulated_ranks: Sequence[int] = SIMULATED
) -> str:
    """All of it, as Markdown."""
    per_peer = fitted(measured[0], num_cores)
    lines = [
        "| ranks | set-up s | simulated s | agreed s | all-reduced s | descriptors | memory MB"
        " | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in measured:
        simulated = simulated_seconds(row.num_ranks, per_peer, num_cores)
        lines.append(
            f"| {row.num_ranks} | {row.setup_seconds:.3f} | {simulated:.3f} |"
            f" {row.agreed_seconds:.3f} | {row.reduced_seconds:.3f} | {row.descriptors} |"
            f" {row.memory_bytes / 1e6:.2f} | {row.setup_cpu_seconds:.3f} |"
        )
    if len(measured) > 1:
        lines += ["", "| ranks | set-up on a core each, s | descriptors | memory MB |"]
        lines.append("|---|---|---|---|")
        for num_ranks in simulated_ranks:
            seconds = simulated_seconds(num_ranks, per_peer, num_ranks)
            descriptors = continued(measured, "descriptors", num_ranks)
            memory = continued(measured, "memory_bytes", num_ranks) / 1e6
            lines.append(f"| {num_ranks} | {seconds:.2f} | {descriptors:,.0f} | {memory:.1f} |")
    return "\n".join(lines)


def main(_: list[str]) -> None:
    program = native.build("scaling")
    sizes = sorted(int(text) for text in _RANKS.value)
    measured = [
        measure(program, size, _LANES.value, _HOST.value, _RANKS_PER_HOST.value) for size in sizes
    ]
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, {_LANES.value} lanes, load average {os.getloadavg()[0]:.1f}\n")
    print(table(measured, cores))
    if _JSON.value:
        Path(_JSON.value).write_text(json.dumps([asdict(row) for row in measured], indent=1))


if __name__ == "__main__":
    _RANKS = flags.DEFINE_list("ranks", ["16", "32", "64", "128", "256"], "Numbers of ranks.")
    _LANES = flags.DEFINE_integer("lanes", 1, "Lanes of each rank.", lower_bound=1)
    _HOST = flags.DEFINE_string("host", "127.0.0.1", "Where ranks listen; unix: for Unix sockets.")
    _RANKS_PER_HOST = flags.DEFINE_integer(
        "ranks_per_host", 0, "Of hosts that are pretended; 0: unknown to ranks.", lower_bound=0
    )
    _JSON = flags.DEFINE_string("json", None, "File to write what was measured to.")
    app.run(main)
