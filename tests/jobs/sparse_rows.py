"""Averages of rows by `RowExchange`, compared with those of dense gradients, for several jobs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from harness import RANK, SIZE, Cases

from tf_libra.capture import gradient_encoding

DTYPES = ("float16", "bfloat16", "float32", "float64")
ROWS, WIDTH = 40, 3
WIDTHS = (127, 128, 129)  # of float32, around a zero block
# Ids of each rank, in the way that sends less: gathered where ranks share few.
IDS: dict[str, Any] = {
    "disjoint": lambda rank: [3 * rank, 3 * rank + 1, 3 * rank + 2],
    "shared": lambda rank: list(range(rank, 30 + rank)),
    "twice": lambda rank: [5, rank, 5, 39, rank, 5],
    "uneven": lambda rank: list(range(0, min(13 * rank, ROWS), 2)),
    "none": lambda rank: [],
    "last": lambda rank: [39, 0] if rank == SIZE - 1 else [],
    "table": lambda rank: list(range(ROWS)),
}
SPECIAL = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, -1e-44, 3e38]


def slices_of(rank: int, ids: list[int], dtype: str, width: int = WIDTH) -> tf.IndexedSlices:
    """Returns a rank's rows; wide ones hold special numbers, and zeros in runs."""
    random = np.random.default_rng([rank, len(ids)])
    values = random.normal(size=[len(ids), width]) * 10.0 ** random.integers(-3, 3)
    if width > WIDTH:
        values[:, 7 : 7 + len(SPECIAL)] = np.roll(SPECIAL, rank)
        values[1::2, 20:] = 0.0
        values[::2, 20:40] = -0.0
    return tf.IndexedSlices(
        tf.constant(values, dtype, [len(ids), width]),
        tf.constant(ids, tf.int64),
        tf.constant([ROWS, width]),
    )


def is_equal(found: Any, expected: Any, with_signs: bool) -> bool:
    """Returns whether numbers are equal; TensorFlow may make a zero of what is denormal."""
    found, expected = (tf.cast(values, tf.float64).numpy() for values in (found, expected))
    if found.shape != expected.shape:
        return False
    is_tiny = np.abs(expected) < np.finfo("float32").tiny
    is_nan = np.isnan(expected)
    same = (found == expected) | (is_nan & np.isnan(found)) | (is_tiny & (found == 0))
    if with_signs:
        same &= is_nan | (np.signbit(found) == np.signbit(expected))
    return bool(np.all(same))


def sparse_averages(
    cases: Cases, connected_engine: Callable[[int], Any], size: int
) -> dict[str, Any]:
    """Returns the averages of `size` ranks that deviate from those of dense gradients; saves all.

    Args:
        cases: saves the averages.
        connected_engine: returns the engine of the first ranks, and None on others.
        size: number of ranks.
    """
    wrong, saved = [], {}
    if connected_engine(size) is None:
        return {"wrong": [], "saved": False}
    kinds = [
        *((dtype, WIDTH, what) for dtype in DTYPES for what in IDS),
        *(("float32", width, what) for width in WIDTHS for what in ("disjoint", "shared")),
    ]
    for dtype, width, what in kinds:
        name, ids_of = f"{dtype}_{width}_{what}", IDS[what]
        rows = [slices_of(rank, ids_of(rank), dtype, width) for rank in range(size)]
        exchange = gradient_encoding.RowExchange(name, "", size)
        found, gathered = exchange.average(rows[RANK]), exchange.gather(rows[RANK])
        exact = tf.float64 if dtype == "float64" else tf.float32
        terms = [tf.cast(tf.convert_to_tensor(row), exact) for row in rows]
        total = terms[0]
        for term in terms[1:]:
            total += term
        expected = tf.cast(total / tf.cast(size, exact), dtype)
        ids = sorted({row for rank in range(size) for row in ids_of(rank)})
        if found.indices.numpy().tolist() != ids or not is_equal(
            found.values, tf.gather(expected, found.indices), with_signs=False
        ):
            wrong.append(name)
        joint = tf.concat([tf.cast(row.values, exact) for row in rows], 0)
        joint = tf.cast(joint / tf.cast(size, exact), dtype)
        if not is_equal(gathered.values, joint, with_signs=True):
            wrong.append(f"{name} gathered")
        if not np.array_equal(gathered.indices, tf.concat([row.indices for row in rows], 0)):
            wrong.append(f"{name} gathered ids")
        saved[name] = tf.cast(found.values, tf.float64)
    cases.save(**saved)
    return {"wrong": wrong, "saved": True}
