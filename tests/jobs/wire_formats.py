"""Gradients that travel in fewer bytes: in 16 bits per element, and as rows."""

import dataclasses
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, Cases
from sparse_rows import ROWS, slices_of, sparse_averages
from split_tensors import connected_engine, plan_of

import tf_libra
from tf_libra.backends import collective_ops
from tf_libra.capture import gradient_encoding
from tf_libra.internal import native
from tf_libra.runtime import error_feedback
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
    engine = connected_engine(size)
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
            ends=[],
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
    model, alone = (models.HandWritten("float32", "momentum") for _ in range(2))
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


LARGE, TINY = 256.0, 0.5


class Drifting:
    """Variables whose gradient of rank 0 is large and changes its sign, next to a tiny part.

    The tiny part is below half a unit of bfloat16 at the large one, on rank 0 and in the sum.
    """

    def __init__(self, dtype: str = "float32") -> None:
        self.weight = tf.Variable(tf.zeros([300], dtype), name="weight")
        self.bias = tf.Variable(tf.zeros([7], dtype), name="bias")
        self.variables = [self.weight, self.bias]

    def step(self, factor: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v) for v in self.variables]) * factor
        for variable, gradient in zip(
            self.variables, tape.gradient(loss, self.variables), strict=True
        ):
            variable.assign_sub(gradient)

    def train(self, step: Any, numbers: range) -> np.ndarray:
        for number in numbers:
            large = LARGE * (-1) ** number if RANK == 0 else 0.0
            step(tf.constant(large + TINY, self.weight.dtype))
        return np.concatenate([v.numpy() for v in self.variables])


def drifting(sent_as: str | None, *, cut: bool = False, **options: Any) -> tuple[Any, Any]:
    model = Drifting()
    plan = plan_of(model.variables, [50] if cut else [], [0, 1], [2, 1])
    plan = dataclasses.replace(plan, wire_dtype=sent_as)
    return model, tf_libra.optimize(plan=plan, **options)(tf.function(model.step))


FEEDBACK = {"wire_dtype": "bfloat16", "error_feedback": True}


@cases
def feedback_recovers_updates() -> Any:
    """Trains in float32, and in bfloat16 without and with error feedback."""
    steps = range(40)
    exact, step = drifting(None)
    exact.train(step, steps)
    alone, step = drifting("bfloat16", wire_dtype="bfloat16")
    alone.train(step, steps)
    model, step = drifting("bfloat16", **FEEDBACK)
    model.train(step, steps)
    cases.save(exact=exact.weight, alone=alone.weight, feedback=model.weight)
    return {"explained": step.explain(), "bound": float(LARGE / 256)}


@cases
def float32_has_no_feedback() -> Any:
    """Trains under a plan in float32, and float64 under a lossy plan, with error feedback."""
    exact, step = drifting(None)
    expected = exact.train(step, range(5))
    model, step = drifting(None, **FEEDBACK)
    same = np.array_equal(model.train(step, range(5)), expected)
    states, wide_results = [error_feedback.copy_errors(step._training._identity)], []
    for sent_as, options in ((None, {}), ("bfloat16", FEEDBACK)):
        wide = Drifting("float64")
        plan = dataclasses.replace(plan_of(wide.variables, [], [0], [1]), wire_dtype=sent_as)
        step = tf_libra.optimize(plan=plan, **options)(tf.function(wide.step))
        wide_results.append(wide.train(step, range(5)))
        states.append(error_feedback.copy_errors(step._training._identity))
    return {"same": same, "same_wide": np.array_equal(*wide_results), "states": states}


@cases
def checkpoint_of_feedback() -> Any:
    """Continues from a checkpoint of each rank, in new steps and in one that has run."""
    first, step = drifting("bfloat16", **FEEDBACK)
    first.train(step, range(5))
    state = tf.train.Checkpoint(weights=first.variables, feedback=step.error_feedback)
    path = state.write(str(FOLDER / f"feedback-{RANK}"))
    expected = first.train(step, range(5, 12))
    hvd.broadcast_object(0)  # rank 0's file is written
    # Another cut of the tensors, and so another place of the errors.
    model, step = drifting("bfloat16", cut=True, **FEEDBACK)
    restoring = tf.train.Checkpoint(weights=model.variables, feedback=step.error_feedback)
    same = []
    for _ in range(2):
        restoring.read(path).assert_consumed()
        same.append(bool(np.array_equal(model.train(step, range(5, 12)), expected)))
    restoring.read(str(FOLDER / "feedback-0"))
    of_first = error_feedback.copy_errors(step._training._identity)
    return {"same": same, "of_first": list(of_first)}


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


for of_these in range(1, SIZE + 1):
    cases.add(f"sparse_{of_these}", partial(sparse_averages, cases, connected_engine, of_these))


# What rank 1 sends as its number of rows, and as its ids.
BROKEN: list[tuple[float, list[float]]] = [
    *((number, []) for number in (np.nan, np.inf, -1, 0.5, 2**31 // SIZE + 1, 2.0**31, 1e300)),
    *((1, [number]) for number in (np.nan, -np.inf, 0.5, ROWS, 2.0**31, 2.0**53, 1e300)),
    (3, [1, -(2.0**60), 2]),
]


@cases
def rows_of_a_broken_peer() -> Any:
    """Exchanges rows with a rank that sends what no rank sends; returns the other ranks' errors."""
    connected_engine(SIZE)
    exchange = gradient_encoding.RowExchange("table", "", SIZE)
    mine = slices_of(RANK, [2, 1], "float32")
    errors = []
    for method in ("gather", "average"):
        for number, ids in BROKEN:
            if RANK == 1:
                own = tf.constant([number], tf.float64)
                collective_ops.all_reduce(own, "table/counts", "", ends=tf.range(1, SIZE + 1))
                if ids:
                    ends = [2, 2 + len(ids), 4 + len(ids)]
                    own = tf.constant(ids, tf.float64)
                    collective_ops.all_reduce(own, "table/indices", "", ends=tf.constant(ends))
                continue
            try:
                getattr(exchange, method)(mine)
            except tf.errors.InvalidArgumentError as error:
                errors.append(error.message)
    return {"errors": errors, "next": exchange.gather(mine).indices.numpy().tolist()}


@cases
def requested_differently() -> Any:
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(wire_dtype=WIRE_DTYPES[RANK % 2])(tf.function(model.step))
    step(*models.part(models.batch(0, SIZE, "float32"), RANK, SIZE))


if __name__ == "__main__":
    hvd.init()
    cases.run()
