"""Steps that cannot run, and steps that raise."""

from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import RANK, restart_engine

import tf_libra
import tf_libra.elastic
from failures.common import LAST, PLAN_FILE, cases, one_step, shard


@cases
def before_hvd_init() -> Any:
    """Runs first: Horovod is initialized by the next case."""
    try:
        one_step()
    finally:
        hvd.init()


@cases
def no_gradients() -> Any:
    @tf_libra.optimize("wfbp")
    @tf.function
    def forgetful_step(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(inputs)

    forgetful_step(*shard())


@cases
def none_gradient() -> Any:
    class Unused(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            self.unused = tf.Variable(np.zeros(3, "float32"), name="unused")

        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = self.loss(inputs, labels)
            tape.gradient(loss, [*self.variables, self.unused])
            return loss

    one_step(Unused)


@cases
def jit_compile() -> Any:
    @tf_libra.optimize("wfbp")
    @tf.function(jit_compile=True)
    def compiled_step(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return inputs

    compiled_step(*shard())


@cases
def jit_compile_inside() -> Any:
    class Inside(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            self.compiled = tf.function(super().step, jit_compile=True)

        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            return self.compiled(inputs, labels)

    one_step(Inside)


@cases
def jit_compile_of_the_loss() -> Any:
    """Only forward and its gradient are compiled, not the all-reduce: allowed."""

    class Loss(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            self.compiled = tf.function(super().loss, jit_compile=True)

        def loss(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            return self.compiled(inputs, labels)

    model = Loss()
    step = tf_libra.optimize(plan=PLAN_FILE)(tf.function(model.step))
    for number in range(3):
        step(*shard(number))
    cases.save(**model.weights())


@cases
def called_inside_of_a_function() -> Any:
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(plan=PLAN_FILE)(tf.function(model.step))

    @tf.function
    def outer(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return step(inputs, labels)

    outer(*shard())


@cases
def raises_in_the_step_on_one_rank() -> Any:
    """The user's own code raises while it is traced, on one rank."""

    class Broken(models.HandWritten):
        def loss(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            if RANK == LAST:
                raise RuntimeError("the data set is empty")
            return super().loss(inputs, labels)

    one_step(lambda: Broken("float32", "sgd"))


@cases
def raises_a_long_text_in_the_step_on_one_rank() -> Any:
    """More than is sent, of characters of 2 bytes, at an odd place; and a byte that is no text."""

    class Broken(models.HandWritten):
        before = ""

        def loss(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            if RANK == LAST:
                raise RuntimeError(f"m\udce4 {self.before}{'ä' * 4000}")
            return super().loss(inputs, labels)

    class Odd(Broken):
        before = "x"

    errors = []
    for kind in (Broken, Odd):
        try:
            one_step(partial(kind, "float32", "sgd"))
        except Exception as error:
            errors.append([type(error).__name__, str(error)])
        restart_engine()
    return errors


@cases
def raises_between_steps() -> Any:
    """One rank's input is wrong in a later step; the others learn why. Then all call again."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(plan=PLAN_FILE)(tf.function(model.step))
    errors = []
    for number in range(6):
        inputs, labels = shard(number)
        if RANK == LAST and number == 3:
            inputs = inputs[:, :5]
        try:
            step(inputs, labels)
        except Exception as error:
            errors.append([number, type(error).__name__, str(error)])
    return errors


@cases
def elsewhere_between_steps() -> Any:
    """One rank checks variables or commits, and the other takes a step: in tuning, under a plan."""
    found = {}
    for what in ("check_variables", "commit"):
        for rank in (0, LAST):
            for phase, tuning_steps in (("tuning", 40), ("plan", 3)):
                model = models.HandWritten("float32", "sgd")
                step = tf_libra.optimize(
                    tf_libra.strategies.Libra(threads=(1, 2)),
                    max_tuning_steps=tuning_steps,
                    timeout_seconds=60.0,
                )(tf.function(model.step))
                state = tf_libra.elastic.TensorFlowState(model.variables)
                for number in range(6):
                    step(*shard(number))
                calls = {"check_variables": step.check_variables, "commit": state.commit}
                try:
                    step(*shard()) if rank != RANK else calls[what]()
                except Exception as error:
                    found[f"{what} {rank} {phase}"] = [type(error).__name__, str(error)]
                restart_engine()
    return found
