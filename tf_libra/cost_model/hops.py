"""How many hops a message of an all-reduce makes, one after the other."""


def num_hops(num_workers: int, hops: int | None, workers_per_host: int | None) -> int:
    """Hops of an all-reduce among N workers; none where there is one.

    Args:
      num_workers: N.
      hops: on one level, whatever N is; None: 2(N-1), as in a ring (LIBRA, Eq. 4).
      workers_per_host: where N workers fill several hosts of so many, more than one, an all-reduce
        goes within hosts and over them, and makes twice `hops`. None: it has one level.
    """
    if hops is None or num_workers == 1:
        return 2 * (num_workers - 1)
    num_hosts, left = divmod(num_workers, workers_per_host or num_workers)
    has_levels = num_hosts > 1 and left == 0 and workers_per_host != 1
    return 2 * hops if has_levels else hops
