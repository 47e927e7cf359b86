"""Optimizers in addition to those of Keras."""

import keras
import tensorflow as tf


class Momentum:
    """An optimizer as a script may write it."""

    def build(self, weights: list[keras.Variable]) -> None:
        self.variables = [
            keras.Variable(tf.zeros(weight.shape), trainable=False, name=f"momentum{i}")
            for i, weight in enumerate(weights)
        ]

    def apply(self, gradients: list[tf.Tensor], weights: list[keras.Variable]) -> None:
        for gradient, weight, slot in zip(gradients, weights, self.variables, strict=True):
            slot.value.assign(0.9 * slot.value)
            slot.value.assign_add(gradient)
            weight.value.assign_sub(0.1 * slot.value)


class Conditional(Momentum):
    """Updates under conditions and by sums, as a script may write them, others for each weight.

    Steps whose gradients are not finite are skipped. All sums are numbers of elements, which are
    the same in every order of summation.
    """

    def build(self, weights: list[keras.Variable]) -> None:
        super().build(weights)
        self.variables.append(keras.Variable(0, dtype="int64", trainable=False, name="number"))

    def apply(self, gradients: list[tf.Tensor], weights: list[keras.Variable]) -> None:
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])
        *slots, number = (variable.value for variable in self.variables)
        is_even = number % 2 == 0
        number.assign_add(1)
        # Nested conditionals.
        if finite:
            slots[0].assign(0.9 * slots[0] + gradients[0])
            if is_even:
                weights[0].value.assign_sub(0.1 * slots[0])
        # Gradients are accumulated.
        if finite:
            if is_even:
                slots[1].assign_add(gradients[1])
            else:
                weights[1].value.assign_sub(0.1 * (slots[1] + gradients[1]))
                slots[1].assign(tf.zeros_like(slots[1]))
        # A conditional returns the gradient.
        given = tf.cond(finite, lambda: gradients[2], lambda: tf.zeros_like(gradients[2]))
        slots[2].assign(0.9 * slots[2] + given)
        weights[2].value.assign_sub(0.1 * slots[2])
        # Sums, which only their branches tell apart, and sums of what the first ones have scaled.
        if finite:
            if is_even:
                scaled = gradients[3] / (1 + _num_positive(gradients[3]))
            else:
                scaled = gradients[3] / (2 + _num_positive(gradients[3]))
        else:
            scaled = tf.zeros_like(gradients[3])
        slots[3].assign_add(scaled / (1 + _num_positive(scaled - 0.01)))
        weights[3].value.assign_sub(0.1 * slots[3])
        # The weight is updated outside of the branch of its slot.
        if finite:
            slots[4].assign_add(gradients[4])
        weights[4].value.assign_sub(0.1 * slots[4])
        zeros = tf.zeros_like(gradients[5])
        is_skipped = tf.reduce_any(tf.math.is_nan(gradients[5]))
        slots[5].assign(0.9 * slots[5] + tf.where(is_skipped, zeros, gradients[5]))
        weights[5].value.assign_sub(0.1 * slots[5])


class EachOptimizer:
    """Keras' optimizers with element-wise updates, of which two update each weight."""

    def __init__(self) -> None:
        k = keras.optimizers
        # float16 cannot hold the usual epsilon.
        self._pairs = [
            (k.SGD(0.1, momentum=0.9, nesterov=True), k.Adamax(0.01, epsilon=1e-3)),
            (k.AdamW(0.01, epsilon=1e-3), k.SGD(0.1)),  # decay reads the weight
            (k.SGD(0.1), k.Nadam(0.01, epsilon=1e-3)),
            (
                k.RMSprop(0.01, momentum=0.5, centered=True, epsilon=1e-3),
                k.Adadelta(0.1, epsilon=1e-3),
            ),
            (k.Ftrl(0.1, l1_regularization_strength=0.001), k.Lion(0.01)),
            (k.Adagrad(0.1, epsilon=1e-3), k.Adam(0.01, epsilon=1e-3)),
        ]

    def build(self, weights: list[keras.Variable]) -> None:
        self.variables = []
        for weight, pair in zip(weights, self._pairs, strict=True):
            for optimizer in pair:
                optimizer.build([weight])
                self.variables += optimizer.variables

    def apply(self, gradients: list[tf.Tensor], weights: list[keras.Variable]) -> None:
        for gradient, weight, pair in zip(gradients, weights, self._pairs, strict=True):
            for optimizer in pair:
                optimizer.apply([gradient], [weight])


def _num_positive(values: tf.Tensor) -> tf.Tensor:
    """Returns the number of positive elements."""
    return tf.reduce_sum(tf.cast(values > 0, values.dtype))
