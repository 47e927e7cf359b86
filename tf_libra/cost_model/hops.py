"""Sequential hops of an all-reduce, by topology."""

import math

# Lanes arrange this many hosts of one rank, or more, as a grid (ops/lanes/grid.h).
LEAST_SQUARE = 16


def num_hops(num_workers: int, hops: int | None, workers_per_host: int | None) -> int:
    """Return the sequential hops of an all-reduce among N workers; 0 for one worker.

    Args:
      num_workers: N.
      hops: on one level, for any N; None: 2(N-1), as in a ring all-reduce (LIBRA, Eq. 4).
      workers_per_host: ranks per host. If N ranks fill several such hosts, an all-reduce has two
        levels, within and across hosts, and twice `hops`. With one rank per host the levels are
        rows and columns, if the hosts form a grid (`row_of_square`). None: it has one level.
    """
    if hops is None or num_workers == 1:
        return 2 * (num_workers - 1)
    if workers_per_host == 1:
        return 2 * hops if row_of_square(num_workers) else hops
    num_hosts, left = divmod(num_workers, workers_per_host or num_workers)
    return 2 * hops if num_hosts > 1 and left == 0 else hops


def row_of_square(num_hosts: int, least: int = LEAST_SQUARE) -> int | None:
    """Return the row length of the grid of hosts with one rank each (ops/lanes/grid.h).

    Args:
      num_hosts: at least 1.
      least: fewer hosts exchange all with all.

    Returns:
      The longer side of the grid nearest to a square; None without one, as for a prime number.
    """
    sides = (side for side in range(math.isqrt(num_hosts), 1, -1) if num_hosts % side == 0)
    shorter = next(sides, None) if num_hosts >= least else None
    return num_hosts // shorter if shorter else None
