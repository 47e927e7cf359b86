"""Counts of bytes per link and connections per rank, on real ranks of simulated hosts."""

from pathlib import Path

import pytest

from benchmarks import links, native
from benchmarks.links import Counted
from benchmarks.scaling import CONNECTIONS


def test_the_busiest_link_is_compared_with_a_ring() -> None:
    connections = dict.fromkeys(CONNECTIONS, 3)
    counted = Counted(2, 2, 1000, True, connections, (900, 1200), (1500, 600))
    assert counted.ring_bytes == 1500.0
    assert counted.of_ring == 1.0
    row = "| 2 | 2 | grid | 3 | 3 | 3 | 3 | 0.001 | 0.002 | 1.000 |"
    assert links.table([counted]).splitlines()[-1] == row


@pytest.fixture(scope="module")
def built_programs() -> Path:
    return native.build("scaling")


# Bytes over each host's link, of those that are all-reduced: each rank of a grid exchanges half of
# what is its own with the one of its place; without, a quarter of all with both ranks of the other
# host.
@pytest.mark.parametrize(("is_grid", "share", "num_peers"), [(True, 1.0, 2), (False, 2.0, 3)])
def test_two_hosts_of_two(
    built_programs: Path, is_grid: bool, share: float, num_peers: int
) -> None:
    num_bytes, num_lanes = 1 << 20, 2
    counted = links.count(built_programs, 2, 2, num_lanes, num_bytes, is_grid)
    for moved in (*counted.sent, *counted.received):
        assert share * num_bytes <= moved <= share * num_bytes * 1.01  # with headers
    assert counted.of_ring == pytest.approx(share / 1.5, rel=0.01)
    assert (counted.of_ring <= 1.05) == is_grid
    assert counted.connections["lanes"] == num_lanes * num_peers
    assert counted.connections["messages"] == 3
    assert counted.connections["watched"] == (2 if is_grid else 3)
    assert 1 <= counted.connections["control"] <= 3


@pytest.mark.parametrize(("is_grid", "num_peers"), [(True, 6), (False, 15)])
def test_sixteen_hosts_of_one_send_as_much_to_fewer(
    built_programs: Path, is_grid: bool, num_peers: int
) -> None:
    counted = links.count(built_programs, 16, 1, 1, 1 << 20, is_grid)
    for moved in (*counted.sent, *counted.received):
        assert moved / counted.ring_bytes == pytest.approx(1.0, rel=0.01)
    assert counted.connections["lanes"] == num_peers
    assert counted.connections["messages"] == counted.connections["watched"] == 15
