"""Densities of gradients: which bytes count in the time of all-reduces that leave out zero blocks.

A rank leaves out blocks of zeros (docs/zero_blocks.md), but looks at them and adds them. So in an
all-reduce of s sent and o omitted bytes, s + k·o count, where k from 0 to 1 is the time of an
omitted byte in relation to that of a sent one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from scipy import optimize

from tf_libra.specs.telemetry import AllReduceRecord


def omitted_cost(records: Sequence[AllReduceRecord]) -> float:
    """Returns k by a fit of startup overhead and both kinds of bytes to the times of all-reduces.

    The result is 1 if the times do not determine k, as when all have the same share of zeros. Then
    it makes no difference.

    Args:
        records: all-reduces without overlap, which begin when the last rank has arrived.
    """
    timed = [record for record in records if record.num_bytes and record.seconds > 0]
    # Without either kind there is nothing to compare.
    if not any(r.omitted_bytes for r in timed) or all(r.sent_share == 0 for r in timed):
        return 1.0
    sizes = np.array([record.num_bytes for record in timed], np.float64)
    shares = np.array([record.sent_share for record in timed])
    columns = np.stack([np.ones(len(timed)), sizes * shares, sizes * (1 - shares)], axis=1)
    columns /= np.array([[record.seconds] for record in timed])
    scale = np.maximum(columns.max(axis=0), np.finfo(float).tiny)
    found = optimize.lsq_linear(columns / scale, np.ones(len(timed)), bounds=(0, np.inf))
    _, sent, omitted = (found.x / scale).tolist()
    return min(omitted / sent, 1.0) if sent > 0 else 1.0


def effective(record: AllReduceRecord, cost: float) -> AllReduceRecord:
    """Returns the record with the bytes that count.

    Args:
        record: an all-reduce.
        cost: k.
    """
    if not record.omitted_bytes:
        return record
    counted = record.num_bytes * (record.sent_share + cost * (1 - record.sent_share))
    return replace(record, num_bytes=max(round(counted), 1))


def densities(records: Iterable[AllReduceRecord], cost: float) -> dict[str, float]:
    """Returns the share of bytes that count of each tensor, by its name.

    Records are of whole groups, so a tensor has the share of the smallest group that was measured
    with it.

    Args:
        records: all-reduces of any steps and plans.
        cost: k.
    """
    totals: dict[tuple[str, ...], np.ndarray] = {}
    for record in records:
        if record.num_bytes:
            sums = totals.setdefault(record.tensor_names, np.zeros(2))
            sums += effective(record, cost).num_bytes, record.num_bytes
    found: dict[str, float] = {}
    for names in sorted(totals, key=len, reverse=True):
        counted, total = totals[names].tolist()
        found |= dict.fromkeys(names, min(counted / total, 1.0))
    return found
