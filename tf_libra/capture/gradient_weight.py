"""Weight of this rank's gradients in a step that some rank takes part in without a batch.

A step in which every rank has a batch is unweighted and uses a trace without the weight.
"""

from typing import Any

import tensorflow as tf

from tf_libra.internal import tf_internal
from tf_libra.internal.process_state import STATE, OnReset


class GradientWeight:
    """Variable by which weighted traces multiply gradients before they are averaged.

    Attributes:
        value: weight in the next step. 1: every rank has a batch.
        is_joined: whether the next step belongs to ranks that may have unequally many batches.
    """

    def __init__(self) -> None:
        """Creates the variable with the weight 1. Call it outside any graph."""
        self.value, self.is_joined = 1.0, False
        # A strategy would mirror a `tf.Variable`. The aggregation marks the value as rank-local.
        with tf.init_scope(), tf.device("/cpu:0"):
            self._variable = tf_internal.ResourceVariable(
                1.0,
                dtype=tf.float64,
                trainable=False,
                name="tf_libra/gradient_weight",
                aggregation=tf.VariableAggregation.SUM,
            )

    def join(self, num_ranks: int, num_batches: int, has_batch: bool) -> None:
        """Sets the weight of the next step, whose averages become those of the batches.

        Args:
            num_ranks: number of ranks.
            num_batches: number of ranks that have a batch in this step.
            has_batch: whether this rank is one of them.
        """
        self.is_joined = True
        self._set(num_ranks / num_batches if has_batch else 0.0)

    def leave(self) -> None:
        """Sets the weight of all later steps to 1."""
        self.is_joined = False
        self._set(1.0)

    def _set(self, value: float) -> None:
        if value != self.value:
            self._variable.assign(value)
            self.value = value

    def apply(self, gradient: Any) -> Any:
        """Returns a gradient, dense or `IndexedSlices`, times the weight.

        The product with the weight 0 is 0 even if the gradient is not finite.
        """
        if isinstance(gradient, tf.IndexedSlices):
            values = self.apply(gradient.values)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        with tf.device("/cpu:0"):
            weight = tf.cast(self._variable.read_value(), gradient.dtype)
        return tf.math.multiply_no_nan(gradient, weight)


@STATE.value(on_reset=OnReset.DISCARD, survives_fork=False)
def gradient_weight() -> GradientWeight:
    """Returns the weight of this process."""
    return GradientWeight()


def is_joined() -> bool:
    """Returns whether the next step belongs to ranks that may have unequally many batches."""
    return gradient_weight.is_created and gradient_weight().is_joined


def is_weighted() -> bool:
    """Returns whether some rank takes part in the next step without a batch."""
    return gradient_weight.is_created and gradient_weight().value != 1
