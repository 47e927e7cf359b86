"""One level or two: what either takes on simulated hosts, whose links send one byte after another.

Lanes choose by topology alone (`ops/lanes/grid.h`); docs/aiacc_paper.md says what decides.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import pytest

from tf_libra.cost_model.base import num_hops, row_of_square

LATENCY = 50e-6  # of a hop
GBIT = 1e9 / 8
# Messages that need nothing of each other: sender, receiver, bytes.
Phase = list[tuple[int, int, float]]


def one_level(ranks: int, num_bytes: float) -> Iterator[Phase]:
    """Every rank gets a part from all, sums it, and gives it to all."""
    for _ in range(2):
        yield exchange(range(ranks), num_bytes / ranks)


def two_levels(hosts: int, per_host: int, num_bytes: float) -> Iterator[Phase]:
    """Within hosts, over hosts twice, within hosts."""
    rows = [range(host * per_host, (host + 1) * per_host) for host in range(hosts)]
    columns = [range(place, hosts * per_host, per_host) for place in range(per_host)]
    within = [send for row in rows for send in exchange(row, num_bytes / per_host)]
    part = num_bytes / per_host / hosts
    over = [send for column in columns for send in exchange(column, part)]
    yield from (within, over, over, within)


def exchange(ranks: Iterable[int], each: float) -> Phase:
    return [(*pair, each) for pair in itertools.permutations(ranks, 2)]


def seconds(phases: Iterable[Phase], per_host: int, rate: float) -> tuple[float, int]:
    """Returns the time until all is sent, and the number of hops; links are full duplex."""
    total, hops = 0.0, 0
    for phase in phases:
        sent: dict[tuple[int, str], float] = defaultdict(float)
        for sender, receiver, num_bytes in phase:
            if sender // per_host != receiver // per_host:
                sent[sender // per_host, "out"] += num_bytes
                sent[receiver // per_host, "in"] += num_bytes
        total += LATENCY + max(sent.values(), default=0.0) / rate
        hops += 1
    return total, hops


def bytes_worth_two_levels(hosts: int, per_host: int, rate: float) -> float:
    """From which on two levels are faster, as docs/aiacc_paper.md has it."""
    return LATENCY * rate * hosts / ((hosts - 1) * (per_host - 1))


@pytest.mark.parametrize(("hosts", "per_host"), [(2, 2), (2, 8), (4, 4), (16, 8)])
@pytest.mark.parametrize("rate", [GBIT, 25 * GBIT, 100 * GBIT])
def test_two_levels_are_faster_above_a_size(hosts: int, per_host: int, rate: float) -> None:
    limit = bytes_worth_two_levels(hosts, per_host, rate)
    for size in (0.1 * limit, 0.9 * limit, 1.1 * limit, 1e4 * limit):
        flat, hops = seconds(one_level(hosts * per_host, size), per_host, rate)
        levels, more_hops = seconds(two_levels(hosts, per_host, size), per_host, rate)
        assert (levels < flat) == (size > limit)
        # Where they are slower, it is by less than two hops; where faster, up to a host's ranks.
        assert levels - flat < 2 * LATENCY and flat < per_host * levels
        assert hops == num_hops(hosts * per_host, 2, None)
        assert more_hops == num_hops(hosts * per_host, 2, per_host)
    assert flat / levels == pytest.approx(per_host, rel=0.01)


def test_tried_sizes_favor_two_levels_up_to_5_gbit() -> None:
    """64 KiB at the least, and larger with more ranks on a host or faster links."""
    assert bytes_worth_two_levels(2, 2, 5 * GBIT) < 64 * 1024
    reported = [round(bytes_worth_two_levels(2, 2, rate * GBIT) / 1e3) for rate in (1, 5, 25, 100)]
    assert reported == [12, 62, 312, 1250]
    reported = [round(bytes_worth_two_levels(4, 8, rate * GBIT) / 1e3) for rate in (1, 5, 25, 100)]
    assert reported == [1, 6, 30, 119]


def num_sends(phases: Iterable[Phase]) -> Counter[int]:
    """Returns the messages of each rank, one to each other in each phase."""
    return Counter(sender for phase in phases for sender, _, _ in phase)


@pytest.mark.parametrize("hosts", [16, 18, 22, 64])
def test_grid_sends_equal_bytes_to_fewer_ranks_with_two_more_hops(hosts: int) -> None:
    row = row_of_square(hosts)
    assert row is not None
    flat, _ = seconds(one_level(hosts, 1e6), 1, GBIT)
    phases = list(two_levels(hosts // row, row, 1e6))
    # Every rank has a host of its own.
    square, hops = seconds(phases, 1, GBIT)
    assert square == pytest.approx(flat + 2 * LATENCY)
    assert hops == num_hops(hosts, 2, 1) == 4
    sends = num_sends(phases)
    assert set(sends.values()) == {2 * (row - 1 + hosts // row - 1)}
    assert set(num_sends(one_level(hosts, 1e6)).values()) == {2 * (hosts - 1)}


@pytest.mark.parametrize("hosts", [2, 5])
def test_one_rank_on_each_host_has_one_level(hosts: int) -> None:
    assert seconds(two_levels(hosts, 1, 1e6), 1, GBIT)[0] == pytest.approx(
        seconds(one_level(hosts, 1e6), 1, GBIT)[0] + 2 * LATENCY
    )
    assert num_hops(hosts, 2, 1) == num_hops(hosts, 2, None) == 2
