"""Runs of both ways for hosts of one rank, by real ranks, and the table of their times."""

from pathlib import Path

import pytest

from benchmarks import grid_all_reduce, native
from benchmarks.grid_all_reduce import Turn


def test_medians_are_of_rounds_and_what_is_saved_of_both_in_one() -> None:
    rounds = [
        {
            "direct": Turn(15, 0.5, 0.25, {64: direct / 10}, {64: direct}),
            "square": Turn(6, 0.25, 0.125, {64: square / 10}, {64: square}),
        }
        for direct, square in ((0.5, 0.25), (0.75, 0.125), (1.0, 1.0))
    ]
    lines = grid_all_reduce.table({16: rounds}).splitlines()
    assert lines[2:4] == [
        "| 16 | direct | 15 | 0.500 | 250.00 |",
        "| 16 | square | 6 | 0.250 | 125.00 |",
    ]
    assert lines[-1] == "| 16 | 64 | 750.00 | 250.00 | 250.00 | 75.00 | 25.00 |"


@pytest.fixture(scope="module")
def built_programs() -> Path:
    return native.build("scaling")


@pytest.mark.parametrize(("row", "num_lanes", "met"), [(0, 1, 5), (3, 2, 3)])
def test_real_ranks_take_a_turn(built_programs: Path, row: int, num_lanes: int, met: int) -> None:
    turn = grid_all_reduce.take_turn(built_programs, 6, row, num_lanes, [4, 1 << 16], repetitions=2)
    assert turn.lanes == num_lanes * met
    assert turn.setup_seconds > 0 and turn.setup_cpu_seconds > 0
    assert turn.seconds.keys() == turn.cpu_seconds.keys() == {4, 1 << 16}
    assert all(seconds > 0 for seconds in turn.seconds.values())
    assert all(seconds > 0 for seconds in turn.cpu_seconds.values())
