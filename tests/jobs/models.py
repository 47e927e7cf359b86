"""Small models and training steps for jobs: no dropout, no batch norm, equal shards."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.specs.plan import Plan, TensorGroup

SHARD = 4
FEATURES = 12
CLASSES = 5

Step = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def batch(step: int, world_size: int, dtype: str, shard: int = SHARD) -> tuple[Any, Any]:
    """The joint batch of a step: inputs (world_size * shard, 12), and a label for each."""
    random = np.random.default_rng(1000 + step)
    inputs = random.normal(size=(world_size * shard, FEATURES)).astype(dtype)
    labels = random.integers(0, CLASSES, size=world_size * shard)
    return tf.constant(inputs), tf.constant(labels)


def part(joint: tuple[Any, Any], rank: int, world_size: int) -> tuple[Any, Any]:
    """A rank's shard of a joint batch."""
    inputs, labels = joint
    shard = len(labels) // world_size
    return inputs[rank * shard : (rank + 1) * shard], labels[rank * shard : (rank + 1) * shard]


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Mean over the batch."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )


class HandWritten:
    """Three dense layers of `tf.Variable`s, with SGD, momentum or Adam written out.

    Momentum has slots, too, and is traced in a part of the time; Adam hides a wrong factor.
    """

    def __init__(self, dtype: str, optimizer: str, seed: int = 7) -> None:
        random = np.random.default_rng(seed)
        widths = (FEATURES, 16, 9, CLASSES)
        self.variables: list[tf.Variable] = []
        for layer, (rows, columns) in enumerate(itertools.pairwise(widths)):
            weights = random.normal(size=(rows, columns)) / np.sqrt(rows)
            self.variables.append(tf.Variable(weights.astype(dtype), name=f"w{layer}"))
            self.variables.append(tf.Variable(np.zeros(columns, dtype), name=f"b{layer}"))
        self._optimizer = optimizer
        zeros = [np.zeros(v.shape, dtype) for v in self.variables]
        if optimizer != "sgd":
            self.slots = [tf.Variable(zero, trainable=False) for zero in zeros]
        if optimizer == "adam":
            self._second = [tf.Variable(zero, trainable=False) for zero in zeros]
            self._count = tf.Variable(np.zeros((), dtype))

    def loss(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        hidden = inputs
        for layer in range(0, len(self.variables), 2):
            hidden = hidden @ self.variables[layer] + self.variables[layer + 1]
            if layer + 2 < len(self.variables):
                hidden = tf.nn.tanh(hidden)
        return cross_entropy(labels, hidden)

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
        self.update(tape.gradient(loss, self.variables))
        return loss

    def update(self, gradients: Sequence[Any]) -> None:
        if self._optimizer == "sgd":
            for variable, gradient in zip(self.variables, gradients, strict=True):
                variable.assign_sub(0.1 * gradient)
            return
        if self._optimizer == "momentum":
            for variable, gradient, slot in zip(self.variables, gradients, self.slots, strict=True):
                slot.assign(0.9 * slot + gradient)
                variable.assign_sub(0.05 * slot)
            return
        self._count.assign_add(1)
        for variable, gradient, first, second in zip(
            self.variables, gradients, self.slots, self._second, strict=True
        ):
            first.assign(0.9 * first + 0.1 * gradient)
            second.assign(0.999 * second + 0.001 * gradient**2)
            mean = first / (1 - 0.9**self._count)
            square = second / (1 - 0.999**self._count)
            variable.assign_sub(0.01 * mean / (tf.sqrt(square) + 1e-7))

    def weights(self) -> dict[str, np.ndarray]:
        return {v.name.split(":")[0]: v.numpy() for v in self.variables}


class Conditional(HandWritten):
    """Takes gradients if the loss of this rank is finite."""

    def __init__(self) -> None:
        super().__init__("float32", "sgd")

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
        if tf.math.is_finite(loss):
            self.update(tape.gradient(loss, self.variables))
        return loss


class Keras:
    """Two convolutions and a dense layer of Keras 3, with a Keras optimizer."""

    def __init__(self, dtype: str, optimizer: str) -> None:
        tf.keras.utils.set_random_seed(3)
        layers = tf.keras.layers
        self.model = tf.keras.Sequential(
            [
                layers.Input((FEATURES,), dtype=dtype),
                layers.Reshape((FEATURES // 2, 2), dtype=dtype),
                layers.Conv1D(6, 3, padding="same", activation="tanh", dtype=dtype),
                layers.Conv1D(4, 3, padding="same", activation="tanh", dtype=dtype),
                layers.Flatten(dtype=dtype),
                layers.Dense(CLASSES, dtype=dtype),
            ]
        )
        self.optimizer = {
            "sgd": lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9),
            "adam": lambda: tf.keras.optimizers.Adam(0.01),
        }[optimizer]()
        # TensorFlow traces a step twice in which slots are created; scripts in tests/real do.
        self.optimizer.build(self.model.trainable_variables)

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = cross_entropy(labels, self.model(inputs, training=True))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    def weights(self) -> dict[str, np.ndarray]:
        return {f"{v.name}.{i}": v.numpy() for i, v in enumerate(self.model.trainable_variables)}


def plan_of(
    variables: Sequence[Any],
    world_size: int,
    edges: Sequence[int],
    threads: Sequence[int],
    after_backward: bool = False,
    dtype: str | None = None,
) -> Plan:
    """A plan written by hand; `variables` in forward order, `edges` from 0 to their number.

    `dtype` is that of the gradients where it is not that of the variables.
    """
    ordered = list(reversed(variables))
    dtypes = [tf.as_dtype(dtype or v.dtype) for v in ordered]
    return Plan(
        groups=tuple(
            TensorGroup(start, stop, r)
            for start, stop, r in zip(edges[:-1], edges[1:], threads, strict=True)
        ),
        tensor_names=tuple(_name(v) for v in ordered),
        num_bytes=tuple(
            int(np.prod(v.shape)) * each.size for v, each in zip(ordered, dtypes, strict=True)
        ),
        num_workers=world_size,
        strategy="by hand",
        after_backward=after_backward,
        dtypes=tuple(each.name for each in dtypes),
    )


def random_plan(variables: Sequence[Any], world_size: int, seed: int) -> Plan:
    """Several groups with mixed thread counts of 1 to 4."""
    random = np.random.default_rng(seed)
    count = len(variables)
    num_groups = int(random.integers(2, min(count, 5) + 1))
    inner = sorted(random.choice(np.arange(1, count), size=num_groups - 1, replace=False).tolist())
    threads = [1 + (seed + i) % 4 for i in range(num_groups)]
    return plan_of(variables, world_size, [0, *inner, count], threads)


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name.split(":")[0])


class MixedNames:
    """Two variables that no other model here has."""

    def __init__(self) -> None:
        self.variables = [tf.Variable(np.zeros(3, "float32"), name=name) for name in ("p", "q")]
