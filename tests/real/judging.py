"""Judges what a script has left behind: weights, phases, and what was all-reduced."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Tolerance of weights, relative to the largest change that training made to any element of the
# same variable.
TOLERANCE = {"float64": 1e-8, "float32": 1e-3}
# Rounding residue of a zero gradient, such as the gradient of attention's key bias.
ROUNDING = {"float64": 1e-12, "float32": 1e-6}


# Sums of half-precision numbers, which depend on the order: how much more may differ.
HALF_PRECISION = {"float16_by_hand": 10}
# Scripts whose second gradient depends on what the first one has changed: what a plan joins of
# the two is executed in parts.
IN_PARTS = (
    "gan_by_fit",
    "meta_learning",
    "soft_actor_critic",
    "wasserstein_with_gradient_penalty",
    "weights_that_were_read",
)
# Scripts with gradients in branches of `tf.cond`, whose groups are executed in parts, too.
IN_BRANCHES = ("auxiliary_head_under_a_condition",)


def weights(folder: Path, name: str, world_size: int) -> list[str]:
    """Returns the differences of the weights from the reference's or between ranks, if any."""
    found = []
    failed = folder / f"{name}.alone.txt"
    if failed.exists():
        return [failed.read_text()]
    stored = [_arrays(folder / f"{name}.{rank}.npz") for rank in range(world_size)]
    for rank, arrays in enumerate(stored):
        kind = "horovod" if any(key.startswith("horovod/") for key in arrays) else "alone"
        reference = arrays if kind == "horovod" else _arrays(folder / f"{name}.alone.npz")
        trained = [key.split("/")[1] for key in arrays if key.startswith("ours/")]
        assert trained, "nothing was compared"
        for index in trained:
            ours, wanted = arrays[f"ours/{index}"], reference[f"{kind}/{index}"]
            start = reference.get(f"start.{kind}/{index}", np.zeros_like(wanted))
            change = np.abs(wanted.astype(float) - start).max(initial=0)
            error = np.abs(ours.astype(float) - wanted).max(initial=0)
            allowed = TOLERANCE[ours.dtype.name] * change + ROUNDING[ours.dtype.name]
            if change == 0 and wanted.size:
                found.append(f"variable {index} did not change")
            if not error <= HALF_PRECISION.get(name, 1) * allowed:
                found.append(f"rank {rank}, {index}: off by {error:.3g}, changed by {change:.3g}")
            if ours.tobytes() != stored[0][f"ours/{index}"].tobytes():
                found.append(f"rank {rank}, {index}: other bits than on rank 0")
    return found


def plans(name: str, values: Sequence[Any]) -> list[str]:
    """Returns faults of phases and plans, and of the all-reduces on other ranks than 0."""
    found = [
        f"the phase is {step['phase']}, under no plan"
        for value in values
        for step in value["steps"]
        if not step["is_planned"]
    ]
    steps = [step for step in values[0]["steps"] if step["is_recorded"]]
    planned = sorted([threads, names] for step in steps for threads, names in step["groups"])
    if not planned:
        found.append("nothing was planned")
    for value in values[1:]:
        executed = [[threads, list(names)] for threads, names in value["executed"]]
        in_parts = name in (*IN_PARTS, *IN_BRANCHES) and _are_parts(executed, planned)
        if sorted(executed) != planned and not in_parts:
            found.append(f"executed {executed}, planned {planned}")
    return found


def _are_parts(executed: Sequence[Any], planned: Sequence[Any]) -> bool:
    """Returns whether the planned groups were executed, each as one or two.

    The scripts take two gradients, of which none can be joined with the other; all of one can.
    """
    parts = [
        [part for r, part in executed if r == threads and set(part) <= set(names)]
        for threads, names in planned
    ]
    return (
        sum(map(len, parts)) == len(executed)
        and all(len(part) <= 2 for part in parts)
        and sorted(n for _, part in executed for n in part)
        == sorted(n for _, names in planned for n in names)
    )


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as stored:
        return dict(stored)
