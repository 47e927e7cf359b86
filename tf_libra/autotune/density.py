"""Densities of gradients: which bytes count in the time of all-reduces that leave out zero blocks.

A rank leaves out blocks of zeros (docs/zero_blocks.md), but looks at them and adds them. So in an
all-reduce of s sent and o omitted bytes, s + k·o count, where k from 0 to 1 is the time of an
omitted byte in relation to that of a sent one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from tf_libra.cost_model.least_squares import OUTLIER
from tf_libra.specs.telemetry import AllReduceRecord

_RANGE = 12.0  # of logarithms around their start


def omitted_cost(records: Sequence[AllReduceRecord]) -> float:
    """Returns k by a robust fit of startup overhead and both kinds of bytes to all-reduces' times.

    The result is 1 if all bytes are sent, or none: there is nothing to compare. If the times do not
    determine k, as when all have the same share of zeros, it makes no difference.

    Args:
        records: all-reduces without overlap, which begin when the last rank has arrived.
    """
    timed = [record for record in records if record.num_bytes and record.seconds > 0]
    if not any(r.omitted_bytes for r in timed) or all(r.sent_share == 0 for r in timed):
        return 1.0
    sizes = np.array([record.num_bytes for record in timed], np.float64)
    shares = np.array([record.sent_share for record in timed])
    seconds = np.array([record.seconds for record in timed])

    def errors(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        startup, per_byte = np.exp(parameters[:2])
        counted = shares + parameters[2] * (1 - shares)
        return np.asarray(np.log((startup + per_byte * sizes * counted) / seconds))

    # Small all-reduces may wait for several times what their bytes take.
    start = np.array([*np.log([seconds.min(), np.median(seconds / sizes)]), 0.5])
    reach = np.array([_RANGE, _RANGE, 0.5])
    found = optimize.least_squares(
        errors,
        start,
        bounds=(start - reach, start + reach),
        loss="soft_l1",
        f_scale=OUTLIER,
        x_scale="jac",
    )
    return float(found.x[2])


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
