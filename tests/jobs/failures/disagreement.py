"""Ranks with different tensors, versions, options, plans or variables."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE

import tf_libra
import tf_libra.elastic
from failures.common import LAST, PLAN_FILE, cases, one_step, patched, shard
from tf_libra.capture import gradient_interception
from tf_libra.runtime import rendezvous
from tf_libra.specs.plan import Plan


@cases
def differ_in_shape() -> Any:
    class Wider(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            if RANK == LAST:
                shape = (models.FEATURES, 17)
                self.variables[0] = tf.Variable(np.zeros(shape, "float32"), name="w0")
                self.variables[1] = tf.Variable(np.zeros(17, "float32"), name="b0")
                self.variables[2] = tf.Variable(np.zeros((17, 9), "float32"), name="w1")

    one_step(Wider)


@cases
def differ_in_dtype() -> Any:
    dtype = "float64" if RANK == LAST else "float32"
    model = models.HandWritten(dtype, "sgd")
    tf_libra.optimize()(tf.function(model.step))(*shard(0, dtype))


@cases
def differ_in_order() -> Any:
    original = gradient_interception.backward_order
    with patched(gradient_interception, "backward_order", lambda *args: original(*args)[::-1]):
        one_step()


@cases
def differ_in_number() -> Any:
    class Frozen(models.HandWritten):
        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = self.loss(inputs, labels)
            # w0, the last in backward order, is frozen on one rank.
            tape.gradient(loss, self.variables[1:] if RANK == LAST else self.variables)
            return loss

    one_step(lambda: Frozen("float32", "sgd"))


@cases
def differ_in_version_of_tensorflow() -> Any:
    with patched(tf, "__version__", "2.99.0"):
        one_step()


@cases
def differ_in_version_of_tf_libra() -> Any:
    with patched(rendezvous, "package_version", lambda: "99.0"):
        one_step()


@cases
def differ_in_plan() -> Any:
    given = Plan.from_json(Path(PLAN_FILE).read_text())
    if RANK == LAST:
        groups = (replace(given.groups[0], num_threads=2), *given.groups[1:])
        given = replace(given, groups=groups)
    one_step(plan=given)


@cases
def differ_in_threads() -> Any:
    """The engines have different numbers of lanes, before anything can be compared over them."""
    threads = (1, 2, 4) if RANK == LAST else (1, 2)
    one_step(strategy=tf_libra.strategies.Libra(threads=threads))


@cases
def differ_in_strategy() -> Any:
    one_step(strategy="wfbp" if RANK == LAST else "libra")


@cases
def differ_in_having_a_plan() -> Any:
    one_step(plan=PLAN_FILE if RANK == LAST else None)


@cases
def differ_in_broadcast_variables() -> Any:
    one_step(broadcast_variables=RANK == LAST)


class Different(models.HandWritten):
    """On the last rank, `w1` starts from other values."""

    def __init__(self, dtype: str = "float32", optimizer: str = "adam") -> None:
        super().__init__(dtype, optimizer)
        if RANK == LAST:
            self.variables[2].assign_add(0.25 * tf.ones_like(self.variables[2]))


@cases
def differ_in_local_variables() -> Any:
    one_step(local_variables=["data"] if RANK == LAST else ())


@cases
def differ_in_grappler() -> Any:
    """One rank would fuse, the other would not."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": RANK == LAST})
    try:
        one_step()
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@cases
def differ_in_a_variable() -> Any:
    one_step(Different, broadcast_variables=False)


@cases
def broadcast_variables() -> Any:
    """Rank 0's values everywhere, whatever the variables are called."""
    random = np.random.default_rng(RANK)
    model = Different()
    for variable in [*model.variables, *model.slots, *model._second]:
        variable.assign_add(random.normal(size=variable.shape).astype("float32") ** 2)
    started = {name: value.copy() for name, value in model.weights().items()}
    step = tf_libra.optimize(plan=PLAN_FILE, broadcast_variables=True)(tf.function(model.step))
    for number in range(3):
        step(*shard(number))
    alone = Different()
    alone_random = np.random.default_rng(0)
    for variable, first in zip(
        [*alone.variables, *alone.slots, *alone._second],
        [*models.HandWritten("float32", "adam").variables, *alone.slots, *alone._second],
        strict=True,
    ):
        added = alone_random.normal(size=variable.shape).astype("float32") ** 2
        variable.assign(first + added)
    for number in range(3):
        alone.step(*models.batch(number, SIZE, "float32"))
    cases.save(
        **{f"ours/{k}": v for k, v in model.weights().items()},
        **{f"alone/{k}": v for k, v in alone.weights().items()},
        **{f"started/{k}": v for k, v in started.items()},
    )


@cases
def differ_in_a_counter() -> Any:
    class Counting(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            self.counter = tf.Variable(RANK, trainable=False, name="counter")

        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            self.counter.assign_add(1)
            return super().step(inputs, labels)

    one_step(Counting, broadcast_variables=False)


@cases
def random_generator_of_each_rank() -> Any:
    """The state of a generator may differ: each rank draws noise of its own."""

    class Noisy(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            self.generator = tf.random.Generator.from_seed(100 + RANK)

        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            noise = self.generator.normal(tf.shape(inputs), stddev=0.01)
            return super().step(inputs + noise, labels)

    return str(one_step(Noisy, plan=PLAN_FILE).phase)


@cases
def differ_in_a_variable_that_is_to_be_broadcast() -> Any:
    """A variable of another shape cannot be copied; it is not among the gradients."""

    class Averaging(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            self.average = tf.Variable(tf.zeros([4 + RANK]), trainable=False, name="average")

        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            self.average.assign(0.9 * self.average)
            return super().step(inputs, labels)

    one_step(Averaging, broadcast_variables=True)
