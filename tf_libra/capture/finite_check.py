"""A check that gradients are finite: recorded in the graph, evaluated after the step.

A value that is not finite on one rank makes the average not finite. The average has the same bits
on every rank, so all ranks detect it in the same step and communicate only then. The step is
undone as a whole.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.coordination.control_plane import Control
from tf_libra.internal import tf_internal


class NotFiniteError(FloatingPointError):
    """A gradient was not finite; the step was undone on every rank."""


class FiniteCheck:
    """The record of the gradients of one training function that were not finite."""

    def __init__(self) -> None:
        """Creates the variables that the graph writes to. Call it outside any graph."""
        # A strategy would mirror a `tf.Variable`.
        with tf.init_scope(), tf.device("/cpu:0"):
            self._found = tf_internal.ResourceVariable(
                False, trainable=False, name="tf_libra/not_finite"
            )
            self._first = tf_internal.ResourceVariable(
                "", trainable=False, name="tf_libra/first_not_finite"
            )

    def add_to_graph(
        self, names: Sequence[str], local: Sequence[Any], reduced: Sequence[Any]
    ) -> None:
        """Adds a check of gradients before and after reduction to the graph that is being traced.

        Args:
            names: of the gradients.
            local: this rank's gradients, tensors or `IndexedSlices`.
            reduced: gradients of all ranks.
        """
        with tf.device("/cpu:0"):
            finite = tf.stack([_is_finite(gradient) for gradient in local])
            culprit = tf.gather(list(names), tf.argmin(tf.cast(finite, tf.int32)))
            is_first = tf.logical_and(self._first.read_value() == "", ~tf.reduce_all(finite))
            self._first.assign(tf.where(is_first, culprit, self._first.read_value()))
            everywhere = tf.reduce_all(tf.stack([_is_finite(gradient) for gradient in reduced]))
            self._found.assign(tf.logical_or(self._found.read_value(), ~everywhere))

    def take(self) -> tuple[bool, str]:
        """Returns and resets whether an average was not finite, and the first such local gradient.

        The name is empty if all local gradients were finite.
        """
        if not self._found.numpy():
            return False, ""
        first = self._first.numpy().decode()
        self._found.assign(False)
        self._first.assign("")
        return True, first


def culprits(control: Control, first: str) -> str:
    """Describes which rank had which gradient; the same on every rank. All ranks must call it.

    Args:
        control: reaches the other ranks.
        first: this rank's first gradient that was not finite; empty if all were finite.
    """
    found = [
        f"the gradient of {name!r} is not finite on rank {rank}"
        for rank, name in enumerate(control.all_gather(first))
        if name
    ]
    return "; ".join(found) or "every rank's gradients are finite, but not their sum"


class VariableSnapshot:
    """The values of variables at one time.

    It holds references: TensorFlow copies a value only if an op writes to its variable.
    """

    def __init__(self, variables: Iterable[Any], copies: bool = False) -> None:
        """Holds the current values.

        Args:
            variables: the variables.
            copies: copy the values now, so that later writes are as fast as without a snapshot.
        """
        self._values = [(variable, variable.read_value()) for variable in variables]
        if copies:
            self._values = [
                (variable, tf.raw_ops.DeepCopy(x=value)) for variable, value in self._values
            ]

    @property
    def values(self) -> list[Any]:
        """The values, in the order of the variables."""
        return [value for _, value in self._values]

    def restore(self) -> None:
        """Assigns the values to their variables."""
        for variable, value in self._values:
            variable.assign(value)


def _is_finite(gradient: Any) -> Any:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_all(tf.math.is_finite(values))
