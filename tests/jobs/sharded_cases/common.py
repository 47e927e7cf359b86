"""A network, its optimizers and its step, which most cases share."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, Cases

import tf_libra
from sharded_cases.optimizers import Conditional, EachOptimizer, Momentum
from tf_libra.specs.plan import TensorGroup
from tf_libra.variable_sync.variable_access import variable_access

cases = Cases()
LEFT = FOLDER / f"left.{RANK}"  # exists when this rank has left
# No size is a multiple of what ranks own, and some are too small for all ranks to own a part.
SHAPES = [(models.FEATURES, 37), (37,), (37, 11), (1,), (11, models.CLASSES), (models.CLASSES,)]
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "nesterov": lambda: keras.optimizers.SGD(
        0.1, momentum=0.9, nesterov=True, weight_decay=0.01, clipvalue=0.01, loss_scale_factor=4.0
    ),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    # The weights of the third step are replaced by averages.
    "averaged": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
    # Updates in branches.
    "accumulated": lambda: keras.optimizers.AdamW(0.01, gradient_accumulation_steps=2),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), initial_scale=8.0, dynamic_growth_steps=2
    ),
    "conditional": Conditional,
    "each": EachOptimizer,
    "written": Momentum,
    "factored": lambda: keras.optimizers.Adafactor(0.01),
    # Sums of all elements, whose last bits may differ.
    "clipped": lambda: keras.optimizers.Adam(0.01, clipnorm=0.1),
    "clipped_together": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1),
    "lamb": lambda: keras.optimizers.Lamb(0.01, clipnorm=0.1),  # sums of clipped values
    "nested": lambda: keras.optimizers.LossScaleOptimizer(  # sums in a branch of a branch
        keras.optimizers.Adam(0.01, clipnorm=0.1, gradient_accumulation_steps=2), initial_scale=8.0
    ),
}
# Cases in which a weight is constrained after its update.
CONSTRAINED = ("nesterov", "scaled")
NUM_STEPS = 4
PLANNED_GATHERS = TensorGroup(2, 6, 2), TensorGroup(1, 2, 4), TensorGroup(0, 1, 1)


class Network:
    """Three dense layers, and an optimizer of Keras."""

    def __init__(self, optimizer: str, dtype: str = "float32") -> None:
        random = np.random.default_rng(7)
        self.weights = [
            keras.Variable(0.2 * random.normal(size=shape), dtype=dtype, name=f"v{i}")
            for i, shape in enumerate(SHAPES)
        ]
        if optimizer in CONSTRAINED:
            self.weights[2].constraint = keras.constraints.NonNeg()
        self.optimizer = OPTIMIZERS[optimizer]()
        self.optimizer.build(self.weights)

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        values = [weight.value for weight in self.weights]
        with tf.GradientTape() as tape:
            hidden = tf.cast(inputs, values[0].dtype)
            for layer in range(0, len(values), 2):
                hidden = tf.tanh(hidden @ values[layer] + values[layer + 1])
            loss = models.cross_entropy(labels, tf.cast(hidden, tf.float32))
        self.optimizer.apply(tape.gradient(loss, values), self.weights)
        return loss

    def variables(self) -> list[tf.Variable]:
        return [weight.value for weight in (*self.weights, *self.optimizer.variables)]


def inputs_of(number: int, shard: int = models.SHARD) -> tuple[Any, Any]:
    return models.part(models.batch(number, SIZE, "float32", shard), RANK, SIZE)


def not_finite(inputs: Any, labels: Any) -> tuple[Any, Any]:
    """Returns a batch whose gradients are no numbers, as one rank's inputs are infinite."""
    return inputs / tf.cast(RANK != SIZE - 1, inputs.dtype), labels


def decorated(
    network: Network, shard: bool | str, function: Callable[..., Any] | None = None
) -> Any:
    values = [weight.value for weight in network.weights]
    plan = models.plan_of(values, SIZE, [0, 1, 4, len(values)], [1, 2, 3])
    if shard == "planned":
        plan, shard = dataclasses.replace(plan, gathers=PLANNED_GATHERS), False
    return tf_libra.optimize(plan=plan, shard_updates=shard)(
        tf.function(network.step if function is None else function)
    )


def num_in_parts(variables: Iterable[Any]) -> int:
    """Returns the number of variables that hold owned parts alone."""
    count = 0
    with variable_access().unobserved():  # else a read makes them whole
        for variable in variables:
            try:
                variable.numpy()
            except tf.errors.InvalidArgumentError:
                count += 1
    return count


def await_files(name: str, ranks: Iterable[int]) -> None:
    """Waits for a file of each of these ranks, as `Path.touch` writes it."""
    paths = [Path(FOLDER / f"{name}.{rank}") for rank in ranks]
    deadline = time.monotonic() + 60.0
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, f"none of {[path.name for path in paths]}"
        time.sleep(0.01)


def different(ours: Network, theirs: Network) -> list[str]:
    """Returns the variables that have other bits."""
    pairs = zip(ours.variables(), theirs.variables(), strict=True)
    return [our.name for our, their in pairs if our.numpy().tobytes() != their.numpy().tobytes()]


def different_weights(ours: Network, theirs: Network) -> list[str]:
    """Returns the weights that have other bits."""
    pairs = zip(ours.weights, theirs.weights, strict=True)
    return [our.path for our, their in pairs if our.numpy().tobytes() != their.numpy().tobytes()]
