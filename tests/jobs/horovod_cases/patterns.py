"""Patterns with a case of their own: partial averages, Adasum, flags and strategies."""

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from forced_families import every_family_in_trials
from harness import RANK, SIZE

import tf_libra
from horovod_cases.comparisons import compare, train_unplanned
from horovod_cases.steps import OWN_SETS, Script, Tape, apart, cases, in_one

MAX_STEPS = 100


@cases
def some_only() -> Any:
    class Some(Script):
        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            return [hvd.allreduce(gradients[0]), *gradients[1:]]

    compare(Some)


@cases
def averaged_in_a_function() -> Any:
    class Apart(Script):
        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            return self.apart(list(gradients))

        @tf.function
        def apart(self, gradients: Sequence[Any]) -> Sequence[Any]:
            return [hvd.allreduce(gradient, op=hvd.Sum) for gradient in gradients]

    compare(Apart)


@cases
def computed_in_a_function() -> Any:
    class Apart(Script):
        @tf.function
        def gradients(self, inputs: tf.Tensor, labels: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = self.loss(inputs, labels)
            return tape.gradient(loss, self.variables)

        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            self.update(hvd.grouped_allreduce(self.gradients(inputs, labels)))
            return tf.zeros([])

    compare(Apart)


@cases
def scalar_of_a_scalar() -> Any:
    class One(Script):
        def __init__(self) -> None:
            super().__init__()
            self.variables = [tf.Variable(np.ones(()), name="one")]

        def loss(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(inputs * self.variables[0])

        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            return [hvd.allreduce(2 * gradient) for gradient in gradients]

    model = One()
    tf_libra.optimize("wfbp")(tf.function(model.step))(
        *models.part(models.batch(0, SIZE, "float64"), RANK, SIZE)
    )


@cases
def shown_maxima() -> Any:
    class Shown(Script):
        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            self.largest = [hvd.allreduce(gradient, op=hvd.Max) for gradient in gradients]
            return gradients

    train_unplanned(Shown)


@cases
def shown_finite() -> Any:
    class Shown(Script):
        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            finite = [tf.cast(tf.math.is_finite(gradient), tf.int32) for gradient in gradients]
            self.finite = [hvd.allreduce(value, op=hvd.Sum) for value in finite]
            return gradients

    train_unplanned(Shown)


@cases
def adasum_of_changes() -> Any:
    class Changes(Script):
        def update(self, gradients: Sequence[Any]) -> None:
            before = [tf.identity(variable) for variable in self.variables]
            super().update(gradients)
            for variable, start in zip(self.variables, before, strict=True):
                variable.assign(start + hvd.allreduce(variable - start, op=hvd.Adasum))

    train_unplanned(Changes)


@cases
def averages_of_weights() -> Any:
    class Weights(Script):
        def update(self, gradients: Sequence[Any]) -> None:
            super().update(gradients)
            for variable in self.variables:
                variable.assign(hvd.allreduce(variable))

    train_unplanned(Weights)


@cases
def averages_of_changes() -> Any:
    """In one vector, and added to the weights at the start, which are kept in a variable."""

    class Changes(Script):
        def __init__(self) -> None:
            super().__init__()
            self.starts = [tf.Variable(variable, trainable=False) for variable in self.variables]

        def update(self, gradients: Sequence[Any]) -> None:
            super().update(gradients)
            pairs = list(zip(self.variables, self.starts, strict=True))
            vector = hvd.allreduce(in_one([a - b for a, b in pairs]))
            for (variable, start), change in zip(pairs, apart(vector, self.starts), strict=True):
                variable.assign(start + change)

    train_unplanned(Changes)


@cases
def norms_of_each_as_rates() -> Any:
    class Rates(Script):
        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            norms = hvd.allreduce(tf.stack([tf.norm(gradient) for gradient in gradients]))
            return [gradient / norms[i] for i, gradient in enumerate(gradients)]

    train_unplanned(Rates)


class Flagged(Script):
    """A flag of Python's says whether the tape averages: in between, each rank trains alone."""

    def step(self, inputs: tf.Tensor, labels: tf.Tensor, averages: bool) -> None:
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
        tape = hvd.DistributedGradientTape(tape) if averages else tape
        self.update(tape.gradient(loss, self.variables))


def train_flagged(step: Any, order: Sequence[bool]) -> None:
    for number, averages in enumerate(order):
        step(*models.part(models.batch(number, SIZE, "float64"), RANK, SIZE), averages)


@cases
def local_steps_by_a_flag() -> Any:
    plain, ours = Flagged(), Flagged()
    order = [True, False, False] * 4
    train_flagged(tf.function(plain.step), order)
    step = tf_libra.optimize("wfbp", max_tuning_steps=3)(tf.function(ours.step))
    train_flagged(step, order)
    saved = {f"plain/{name}": value for name, value in plain.weights().items()}
    cases.save(**saved, **{f"ours/{name}": value for name, value in ours.weights().items()})
    return {"phase": str(step.phase)}


@cases
def local_steps_by_a_flag_at_first() -> Any:
    train_flagged(tf_libra.optimize("wfbp")(tf.function(Flagged().step)), [False, False, True])


@cases
def process_set_on_one_rank() -> Any:
    class OnOne(Script):
        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            if RANK == 0:
                return [hvd.allreduce(gradient, process_set=OWN_SETS[0]) for gradient in gradients]
            return gradients

    train_unplanned(OnOne)


@cases
def called_by_a_strategy() -> Any:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        model = Script()
    step = tf_libra.optimize("wfbp")(tf.function(model.step))
    strategy.run(step, args=models.part(models.batch(0, SIZE, "float64"), RANK, SIZE))


@cases
def calls_a_strategy() -> Any:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        model = Script()

    @tf_libra.optimize("wfbp")
    @tf.function
    def distributed_step(inputs: tf.Tensor, labels: tf.Tensor) -> Any:
        return strategy.run(model.step, args=(inputs, labels))

    distributed_step(*models.part(models.batch(0, SIZE, "float64"), RANK, SIZE))


@cases
def tape_by_auto() -> Any:
    """Trains through trials that one rank wins, although Horovod's tape averages."""
    alone, ours = Script(), Tape()
    strategy = tf_libra.strategies.Auto(threads=(1,), streams=(1,), families=("one-rank",))
    num_settled = 0
    with every_family_in_trials("one-rank"):
        step = tf_libra.optimize(strategy, max_tuning_steps=8)(tf.function(ours.step))
        for number in range(MAX_STEPS):
            joint = models.batch(number, SIZE, "float64")
            step(*models.part(joint, RANK, SIZE))
            alone.step(*joint)
            num_settled += step.settled
            if num_settled == 2:
                break
    every = {"ours": ours, "alone": alone}
    cases.save(**{f"{k}/{n}": v for k, model in every.items() for n, v in model.weights().items()})
    return {"phase": str(step.phase), "plan": type(step.plan).__name__}
