"""Compares direct all-reduces with those on a grid, for hosts of one rank each.

    python -m benchmarks.grid_all_reduce [--ranks 9,16]

Where every host has one rank, lanes go to all other ranks or, from a number of ranks on, to those
of a row and of a column alone (ops/lanes/grid.h). By this that number was chosen. Both are run by
real rank processes on this machine (`benchmarks/scaling.cc`), over TCP on loopback, as jobs that
take turns, round by round. The ranks of a square are configured as if its rows were hosts which
share nothing, and so have its lanes whatever their number. Reported are medians over rounds:

- lanes: connections that a rank has for them;
- set-up, its CPU: seconds until the last rank was connected, and the most of a core of any rank;
- CPU: seconds of a core per all-reduce and rank, the mean of all ranks;
- saved: how many fewer of these a square takes, compared within rounds. It makes two hops more,
  and where each rank has a core of its own it is faster if both together take less than that;
- all-reduce: seconds of one, of the rank that took longest. All ranks share this machine's cores.
"""

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from absl import app, flags

from benchmarks import native
from benchmarks.scaling import job
from tf_libra.cost_model.base import row_of_square

EXCHANGES = ("direct", "square")


@dataclass(frozen=True)
class Turn:
    """One job of a round.

    Attributes:
        lanes: the most connections that a rank has for them.
        setup_seconds: until the last rank was connected.
        setup_cpu_seconds: of a core, of the rank that took most to be connected.
        seconds: by bytes, of an all-reduce, of the rank that took longest.
        cpu_seconds: by bytes, of a core, of an all-reduce and a rank in the mean.
    """

    lanes: int
    setup_seconds: float
    setup_cpu_seconds: float
    seconds: Mapping[int, float]
    cpu_seconds: Mapping[int, float]


def take_turn(
    program: Path, num_ranks: int, row: int, num_lanes: int, sizes: Sequence[int], repetitions: int
) -> Turn:
    """Runs a job that all-reduces so many times of each size.

    Args:
        program: built from `scaling.cc`.
        num_ranks: processes.
        row: so many ranks are a row of the square; 0: all exchange with all.
        num_lanes: of each.
        sizes: bytes, in whole floats.
        repetitions: of each.

    Raises:
        RuntimeError: a rank has failed; its own words are on standard error.
    """
    with job(program, num_ranks, num_lanes, ranks_per_host=row, local_sockets=False) as running:
        timed = {size: running.time(size, repetitions) for size in sizes}
        return Turn(
            lanes=max(rank.connections["lanes"] for rank in running.ranks),
            setup_seconds=max(rank.setup_seconds for rank in running.ranks),
            setup_cpu_seconds=max(rank.setup_cpu_seconds for rank in running.ranks),
            seconds={size: max(seconds for seconds, _ in pairs) for size, pairs in timed.items()},
            cpu_seconds={
                size: statistics.mean(cpu_seconds for _, cpu_seconds in pairs)
                for size, pairs in timed.items()
            },
        )


def table(measured: Mapping[int, Sequence[Mapping[str, Turn]]]) -> str:
    """All of it, as Markdown.

    Args:
        measured: of each number of ranks, round by round, the turn of each exchange.
    """
    lines = ["| ranks | exchange | lanes | set-up s | its CPU ms |", "|--:|---|--:|--:|--:|"]
    for num_ranks, rounds in measured.items():
        for exchange in EXCHANGES:
            turns = [round_[exchange] for round_ in rounds]
            lines.append(
                f"| {num_ranks} | {exchange} | {turns[0].lanes} |"
                f" {statistics.median(turn.setup_seconds for turn in turns):.3f} |"
                f" {_milliseconds(turn.setup_cpu_seconds for turn in turns)} |"
            )
    lines += [
        "",
        "| ranks | bytes | CPU ms, direct | square | saved | all-reduce ms, direct | square |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for num_ranks, rounds in measured.items():
        pairs = [(round_["direct"], round_["square"]) for round_ in rounds]
        for size in pairs[0][0].seconds:
            cells = [
                _milliseconds(direct.cpu_seconds[size] for direct, _ in pairs),
                _milliseconds(square.cpu_seconds[size] for _, square in pairs),
                _milliseconds(
                    grid.cpu_seconds[size] - other.cpu_seconds[size] for grid, other in pairs
                ),
                _milliseconds(direct.seconds[size] for direct, _ in pairs),
                _milliseconds(square.seconds[size] for _, square in pairs),
            ]
            lines.append(f"| {num_ranks} | {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _milliseconds(rounds: Iterable[float]) -> str:
    return f"{statistics.median(rounds) * 1e3:.2f}"


def main(_: list[str]) -> None:
    program = native.build("scaling")
    sizes = [int(text) for text in _BYTES.value]
    rows = {int(text): row_of_square(int(text), least=4) for text in _RANKS.value}
    none = [num_ranks for num_ranks, row in rows.items() if row is None]
    if none:
        raise app.UsageError(f"--ranks: {none[0]} are no square")
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, {_LANES.value} lanes, load average {os.getloadavg()[0]:.1f}\n")
    measured: dict[int, list[dict[str, Turn]]] = {num_ranks: [] for num_ranks in rows}
    for number in range(_ROUNDS.value):
        for num_ranks, row in rows.items():
            turns = {}
            for exchange in EXCHANGES if number % 2 else reversed(EXCHANGES):
                own = row if exchange == "square" and row is not None else 0
                turns[exchange] = take_turn(
                    program, num_ranks, own, _LANES.value, sizes, _REPETITIONS.value
                )
            measured[num_ranks].append(turns)
    print(table(measured))
    if _JSON.value:
        document = [
            {"ranks": num_ranks, **{name: asdict(turn) for name, turn in turns.items()}}
            for num_ranks, rounds in measured.items()
            for turns in rounds
        ]
        Path(_JSON.value).write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    _RANKS = flags.DEFINE_list(
        "ranks", ["9", "12", "16", "22", "25", "36", "64"], "Numbers of ranks."
    )
    _BYTES = flags.DEFINE_list("bytes", ["1024", "65536", "4194304"], "All-reduced.")
    _LANES = flags.DEFINE_integer("lanes", 1, "Lanes of each rank.", lower_bound=1)
    _ROUNDS = flags.DEFINE_integer("rounds", 7, "Rounds over all of it.", lower_bound=1)
    _REPETITIONS = flags.DEFINE_integer("repetitions", 10, "All-reduces of each.", lower_bound=1)
    _JSON = flags.DEFINE_string("json", None, "File to write all figures to.")
    app.run(main)
