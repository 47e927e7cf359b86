"""Float32 gradients that travel in 16 bits: sums, training, and the choice between formats."""

import dataclasses
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE, Cases
from split_tensors import met, plan_of

import tf_libra
from tf_libra.internal import native
from tf_libra.specs.plan import WIRE_DTYPES

cases = Cases()
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 1e-40, 65519.0, 65520.0, 3.3e38, 2.0**-24, 2.0**-25]


def gradients(rank: int, count: int) -> np.ndarray:
    """Returns numbers of all magnitudes, with special ones on the last rank."""
    random = np.random.default_rng([rank, count])
    values = random.normal(size=count) * 10.0 ** random.integers(-6, 4, size=count)
    if rank == SIZE - 1 and count >= len(SPECIAL):
        values[: len(SPECIAL)] = SPECIAL
    return values.astype("float32")


def model_of(wire_dtype: str, count: int, size: int, reduction: str) -> np.ndarray:
    """Rounds each rank's numbers, adds them in rank order in float32, and rounds the result."""
    rounded = tf.as_dtype(wire_dtype).as_numpy_dtype
    if size == 1:
        return gradients(0, count)
    terms = [gradients(rank, count).astype(rounded).astype("float32") for rank in range(size)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    if reduction == "average":
        total = total / np.float32(size)
    return total.astype(rounded).astype("float32")


def sums(wire_dtype: str, size: int) -> list[str]:
    """Returns the all-reduces of the first `size` ranks that deviate from the model."""
    engine = met(size)
    wrong: list[str] = []
    if engine is None:
        return wrong
    for number, (count, reduction, threads) in enumerate(
        (count, reduction, threads)
        for count in (1, 7, 8, 1000, 70_001)
        for reduction in ("average", "sum")
        for threads in (1, 3)
    ):
        engine.set_step(number)
        mine = gradients(RANK, count)
        (reduced,) = native.load().ops.libra_all_reduce(
            tensors=[tf.constant(mine)],
            tensor_names=["values"],
            reduction=reduction,
            num_threads=threads,
            wire_dtype=wire_dtype,
        )
        expected = model_of(wire_dtype, count, size, reduction)
        if not np.array_equal(reduced.numpy(), expected, equal_nan=True):
            wrong.append(f"{count} {reduction} {threads}")
    return wrong


for each in WIRE_DTYPES:
    for of_these in range(1, SIZE + 1):
        cases.add(f"sums_{each}_{of_these}", lambda each=each, size=of_these: sums(each, size))


def trained(wire_dtype: str) -> Any:
    """Trains under a plan of three streams that cuts tensors, and alone without loss."""
    model, alone = (models.HandWritten("float32", "adam") for _ in range(2))
    total = sum(int(np.prod(v.shape)) for v in model.variables)
    cuts = sorted({total * i // 5 for i in range(1, 5)})
    plan = plan_of(model.variables, cuts, [0, 1, 2], [2, 1])
    plan = dataclasses.replace(plan, wire_dtype=wire_dtype)
    step = tf_libra.optimize(plan=plan, wire_dtype=wire_dtype)(tf.function(model.step))
    losses = []
    for number in range(60):
        joint = models.batch(number % 4, SIZE, "float32")
        step(*models.part(joint, RANK, SIZE))
        alone.step(*joint)
        losses.append((float(model.loss(*joint)), float(alone.loss(*joint))))
    cases.save(**model.weights())
    pairs = zip(model.weights().values(), alone.weights().values(), strict=True)
    is_exact = all(np.array_equal(ours, theirs) for ours, theirs in pairs)
    return {"losses": losses, "exact": is_exact, "explained": step.explain()}


for each in WIRE_DTYPES:
    cases.add(f"trained_{each}", lambda each=each: trained(each))


@cases
def tuned() -> Any:
    """Tunes with both formats allowed."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize("libra", wire_dtype="bfloat16", max_tuning_steps=80)(
        tf.function(model.step)
    )
    number = 0
    while not step.settled:
        step(*models.part(models.batch(number, SIZE, "float32"), RANK, SIZE))
        number += 1
    race = step.tuned.race
    tried = [] if race is None else [candidate.plan.wire_dtype for candidate in race.candidates]
    cases.save(**model.weights())
    return {
        "tried": tried,
        "active": step.plan.wire_dtype,
        "lossy": "lossy" in step.explain(),
        "rounding": step.cost_model.rounding_per_byte,
    }


@cases
def requested_differently() -> Any:
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(wire_dtype=WIRE_DTYPES[RANK % 2])(tf.function(model.step))
    step(*models.part(models.batch(0, SIZE, "float32"), RANK, SIZE))


if __name__ == "__main__":
    hvd.init()
    cases.run()
