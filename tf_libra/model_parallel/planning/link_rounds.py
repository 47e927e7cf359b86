"""Rounds in which links between ranks are measured, and costs of all links from the measured ones.

Links within a host are alike, and so are those between two hosts. Transfers of one round must not
share a host, whose network interface they would divide among them.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tf_libra.runtime.family_prediction import MOST_LINK_ROUNDS

Pair = tuple[int, int]


def make_rounds(hosts: Sequence[Hashable]) -> list[list[Pair]]:
    """Return the pairs of ranks to measure, by round; pairs of one round share no host.

    The first round measures two ranks of each host. The others are a tournament of the hosts'
    first ranks, in which every two of them meet once. Of more than `MOST_LINK_ROUNDS` rounds, as
    many are chosen at even distances.

    Args:
        hosts: host of each rank.
    """
    groups = _ranks_by_host(hosts)
    players: list[int | None] = [first for first, *_ in groups]
    players += [None] * (len(players) % 2)  # who meets it pauses
    *circle, last = players
    count = len(circle)
    most = min(count, MOST_LINK_ROUNDS)
    rounds = [[(ranks[0], ranks[1]) for ranks in groups if len(ranks) > 1]]
    for place in (number * count // most for number in range(most)):
        meetings = [(circle[place], last)]
        for step in range(1, count // 2 + 1):
            meetings.append((circle[place - step], circle[(place + step) % count]))
        rounds.append(
            [
                (min(rank, peer), max(rank, peer))
                for rank, peer in meetings
                if rank is not None and peer is not None
            ]
        )
    return [pairs for pairs in rounds if pairs]


def spread_costs(measured: Mapping[Pair, float], hosts: Sequence[Hashable]) -> NDArray[np.float64]:
    """Return the cost of the link between every two ranks, shape [V, V].

    A link between two hosts that have not met costs as much as the cheapest link of one of them:
    the one whose cheapest link costs more. That holds if network interfaces limit the rates.

    Args:
        measured: cost by pair of `make_rounds`.
        hosts: host of each rank.
    """
    groups = _ranks_by_host(hosts)
    host_of = {rank: number for number, ranks in enumerate(groups) for rank in ranks}
    costs = np.full([len(groups)] * 2, np.nan)
    for (rank, other), cost in measured.items():
        costs[host_of[rank], host_of[other]] = costs[host_of[other], host_of[rank]] = cost
    within = np.nan_to_num(np.diag(costs))
    np.fill_diagonal(costs, np.nan)
    if len(groups) > 1:
        least = np.nanmin(costs, axis=1)
        costs = np.where(np.isnan(costs), np.maximum.outer(least, least), costs)
    np.fill_diagonal(costs, within)
    index = [host_of[rank] for rank in range(len(hosts))]
    found = costs[np.ix_(index, index)]
    np.fill_diagonal(found, 0.0)
    return found


def _ranks_by_host(hosts: Sequence[Hashable]) -> list[list[int]]:
    found: dict[Hashable, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return list(found.values())
