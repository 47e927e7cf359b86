"""How many hops a message of an all-reduce makes, one after the other."""

import math

# From so many hosts of one rank on lanes make a square of them (ops/lanes/grid.h).
LEAST_SQUARE = 16


def num_hops(num_workers: int, hops: int | None, workers_per_host: int | None) -> int:
    """Hops of an all-reduce among N workers; none where there is one.

    Args:
      num_workers: N.
      hops: on one level, whatever N is; None: 2(N-1), as in a ring (LIBRA, Eq. 4).
      workers_per_host: where N workers fill several hosts of so many, more than one, an all-reduce
        goes within hosts and over them, and makes twice `hops`. Where each has a host of its own it
        does so in rows and columns if they are a square (`row_of_square`). None: it has one level.
    """
    if hops is None or num_workers == 1:
        return 2 * (num_workers - 1)
    if workers_per_host == 1:
        return 2 * hops if row_of_square(num_workers) else hops
    num_hosts, left = divmod(num_workers, workers_per_host or num_workers)
    return 2 * hops if num_hosts > 1 and left == 0 else hops


def row_of_square(num_hosts: int, least: int = LEAST_SQUARE) -> int | None:
    """How many hosts are a row, where lanes make a square of hosts of one rank (ops/lanes/grid.h).

    Args:
      num_hosts: at least 1.
      least: fewer exchange all with all.

    Returns:
      The longer side of what is nearest to a square; None: they are none, as a prime number.
    """
    sides = (side for side in range(math.isqrt(num_hosts), 1, -1) if num_hosts % side == 0)
    shorter = next(sides, None) if num_hosts >= least else None
    return num_hosts // shorter if shorter else None
