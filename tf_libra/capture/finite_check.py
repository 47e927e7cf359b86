"""A check that gradients are finite: noted in the graph, judged after the step.

What is not finite on one rank is not finite in the average, which has the same bits on every
rank; so all ranks judge alike, in the same step, and ask each other only if there is something
to say. A step that is not to count is undone as a whole.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.coordination.control_plane import Control
from tf_libra.internal import tf_internal


class NotFiniteError(FloatingPointError):
    """A gradient was not finite; the step was undone on every rank."""


class FiniteCheck:
    """The notes on the gradients of one training function that were not finite."""

    def __init__(self) -> None:
        """Makes the variables that the graph writes to. Call it outside of any graph."""
        # Not `tf.Variable`, which a strategy would mirror.
        with tf.init_scope(), tf.device("/cpu:0"):
            self._found = tf_internal.ResourceVariable(
                False, trainable=False, name="tf_libra/not_finite"
            )
            self._first = tf_internal.ResourceVariable(
                "", trainable=False, name="tf_libra/first_not_finite"
            )

    def note(self, names: Sequence[str], local: Sequence[Any], reduced: Sequence[Any]) -> None:
        """Adds to the graph that is being traced: looks at gradients before and after reduction.

        Args:
            names: of the gradients.
            local: this rank's, tensors or `IndexedSlices`.
            reduced: of all ranks.
        """
        with tf.device("/cpu:0"):
            finite = tf.stack([_is_finite(one) for one in local])
            culprit = tf.gather(list(names), tf.argmin(tf.cast(finite, tf.int32)))
            is_first = tf.logical_and(self._first.read_value() == "", ~tf.reduce_all(finite))
            self._first.assign(tf.where(is_first, culprit, self._first.read_value()))
            everywhere = tf.reduce_all(tf.stack([_is_finite(one) for one in reduced]))
            self._found.assign(tf.logical_or(self._found.read_value(), ~everywhere))

    def take(self) -> tuple[bool, str]:
        """Returns whether an average was not finite, and the first local gradient that was not.

        Forgets both.
        """
        if not self._found.numpy():
            return False, ""
        first = self._first.numpy().decode()
        self._found.assign(False)
        self._first.assign("")
        return True, first


def culprits(control: Control, first: str) -> str:
    """Describes which rank had what; the same on every rank. All ranks must call it.

    Args:
        control: reaches the other ranks.
        first: this rank's first gradient that was not finite; empty if all were.
    """
    everyone = control.all_gather(first)
    found = [
        f"the gradient of {name!r} is not finite on rank {rank}"
        for rank, name in enumerate(everyone)
        if name
    ]
    return "; ".join(found) or "every rank's gradients are finite, but not their sum"


class VariableSnapshot:
    """The values of variables at one time.

    A value is held by reference: nothing is copied before something writes to its variable.
    """

    def __init__(self, variables: Iterable[Any]) -> None:
        """Holds the values that the variables have now."""
        self._values = [(variable, variable.read_value()) for variable in variables]

    def restore(self) -> None:
        """Gives every variable its value of then."""
        for variable, value in self._values:
            variable.assign(value)


def _is_finite(gradient: Any) -> Any:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_all(tf.math.is_finite(values))
