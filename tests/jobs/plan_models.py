"""Models of the job `plans.py`, whose steps compute gradients in uncommon ways."""

import models
import numpy as np
import tensorflow as tf


class Embedding:
    """A table of which each batch touches some rows, some of them twice."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        self.table = tf.Variable(random.normal(size=(30, 4)), name="table")
        self.head = tf.Variable(random.normal(size=(4, models.CLASSES)), name="head")

    def step(self, ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        variables = [self.table, self.head]
        with tf.GradientTape() as tape:
            rows = tf.reduce_sum(tf.gather(self.table, ids), axis=1)
            loss = models.cross_entropy(labels, rows @ self.head)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss

    def weights(self) -> dict[str, np.ndarray]:
        return {"table": self.table.numpy(), "head": self.head.numpy()}


class MixedDtypes:
    """Layers in three dtypes, two of which keep turns in backward order."""

    DTYPES = ("float32", "float64", "float32", "float16", "float64")

    def __init__(self) -> None:
        random = np.random.default_rng(2)
        width = models.FEATURES
        self.variables = [
            tf.Variable((random.normal(size=(width, width)) / 4).astype(dtype), name=f"m{i}")
            for i, dtype in enumerate(self.DTYPES)
        ]

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            hidden = inputs
            for variable in self.variables:
                hidden = tf.tanh(tf.cast(hidden, variable.dtype) @ variable)
            loss = models.cross_entropy(labels, tf.cast(hidden, tf.float32))
        gradients = tape.gradient(loss, self.variables)
        for variable, gradient in zip(self.variables, gradients, strict=True):
            variable.assign_sub(tf.cast(0.1, variable.dtype) * gradient)
        return loss

    def weights(self) -> dict[str, np.ndarray]:
        return {v.name.split(":")[0]: v.numpy() for v in self.variables}


class Unrolled(models.HandWritten):
    """Two updates in one step: what is all-reduced last depends on what is all-reduced first."""

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        super().step(inputs, labels)
        return super().step(inputs * 0.5, labels)


class Looping(models.HandWritten):
    """Updates in a loop of the graph, as `steps_per_execution` makes one."""

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            super().step(inputs, labels)
        return tf.zeros([])


class Nested(models.HandWritten):
    """The gradient is computed by a `tf.function` inside; the step makes variables when traced."""

    def __init__(self, dtype: str, optimizer: str) -> None:
        super().__init__(dtype, optimizer)
        self.counter: tf.Variable | None = None
        self.inner = tf.function(super().step)

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if self.counter is None:
            self.counter = tf.Variable(0, trainable=False)
        self.counter.assign_add(1)
        return self.inner(inputs, labels)
