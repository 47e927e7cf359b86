"""Horovod's wrapper around optimizers of Keras 2 (`tf_keras`); needs TF_USE_LEGACY_KERAS=1."""

from typing import Any

import horovod.tensorflow as hvd
import models
import tensorflow as tf
from harness import RANK, SIZE
from horovod_cases.comparisons import compare, compare_unplanned
from horovod_cases.steps import OWN_SETS, Script, cases

import tf_libra


class Minimizing(Script):
    """`minimize` computes, averages and applies."""

    wrapper_options: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = self.make()

    def make(self) -> Any:
        optimizer = tf.keras.optimizers.SGD(0.1)
        return hvd.DistributedOptimizer(optimizer, **self.wrapper_options)

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
        self.optimizer.minimize(loss, self.variables, tape=tape)
        return loss


class MinimizingLegacy(Minimizing):
    def make(self) -> Any:
        return hvd.DistributedOptimizer(tf.keras.optimizers.legacy.SGD(0.1))


class Accumulating(Minimizing):
    """Averages every other step what has come together since."""

    wrapper_options = {"backward_passes_per_step": 2}  # noqa: RUF012


class MinimizingInProcessSet(Minimizing):
    wrapper_options = {"process_set": OWN_SETS[RANK]}  # noqa: RUF012


class Applying(Script):
    """`apply_gradients` alone, by which Horovod averages nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))

    def update(self, gradients: Any) -> None:
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))


def accumulating_tuned() -> Any:
    """Tunes with steps of which every other one only accumulates."""
    model = Accumulating()
    unlimited = tf_libra.Tuning(max_seconds=1e6)
    step = tf_libra.optimize("mg-wfbp", max_tuning_steps=16, tuning=unlimited)(
        tf.function(model.step)
    )
    for number in range(24):
        step(*models.part(models.batch(number, SIZE, "float64"), RANK, SIZE))
    return {"phase": step.phase, "explained": step.explain()}


def accumulating_in_several() -> Any:
    """Graphs of three steps, one or two of which all-reduce, compared with the unchanged script."""
    plain, ours = Accumulating(), Accumulating()
    single, once = tf.function(plain.step), tf.function(ours.step)

    def steps(batches: Any) -> None:
        for batch in batches:
            once(*batch)

    step = tf_libra.optimize("mg-wfbp", max_tuning_steps=4)(tf.function(steps))
    shards = [models.part(models.batch(n, SIZE, "float64"), RANK, SIZE) for n in range(60)]
    number = 0
    while not step.settled:
        step((shards[number],))
        number += 1
    for _ in range(3):
        step.several(3, tuple(shards[number : number + 3]))
        number += 3
    for shard in shards[:number]:
        single(*shard)
    pairs = zip(ours.variables, plain.variables, strict=True)
    error = max(float(tf.reduce_max(abs(a - b))) for a, b in pairs)
    return {"phase": step.phase, "error": error, "planned": step.plan.tensor_names}


if __name__ == "__main__":
    hvd.init(process_sets=OWN_SETS)
    for name, kind in {"minimizing": Minimizing, "minimizing_legacy": MinimizingLegacy}.items():
        cases.add(
            name,
            lambda kind=kind: compare(kind, alone=Script, plain=kind),
        )
    cases.add("accumulating_tuned", accumulating_tuned)
    cases.add("accumulating_in_several", accumulating_in_several)
    cases.add("accumulating", lambda: compare(Accumulating, plain=Accumulating))
    cases.add(
        "minimizing_in_process_set",
        lambda: compare_unplanned(MinimizingInProcessSet),
    )
    cases.add("applying", lambda: compare(Applying, alone=Script))
    cases.run()
