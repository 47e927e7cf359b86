"""Calls of a step's computations that may fail on one rank, while others wait for its tensors.

Under a guard, a computation that fails returns zeros. So its rank still sends and receives what the
other ranks expect, and afterwards all ranks agree to undo the step.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.internal.process_state import STATE

# A signal handler of the script raises others.
_FAILURES = (tf.errors.OpError, MemoryError, TypeError, ValueError)


@dataclass
class CallGuard:
    """Guard of one step on this rank.

    Attributes:
        error: the first error of a computation; None if there was none.
    """

    error: Exception | None = None

    def check(self) -> None:
        """Raises the error, if there was one."""
        if self.error is not None:
            raise self.error

    def call(self, run: Callable[[], list[Any]], outputs: Sequence[Any]) -> list[Any]:
        """Returns the results of a computation, or zeros if it fails.

        Args:
            run: the computation, which exchanges nothing with other ranks.
            outputs: symbolic tensors of its results.

        Raises:
            Exception: the computation fails, and zeros cannot take the place of a result.
        """
        try:
            return run()
        except _FAILURES as error:
            if not all(_has_zeros(tensor) for tensor in outputs):
                raise
            self.error = self.error or error
        shapes = [[size or 0 for size in tensor.shape] for tensor in outputs]
        return [
            tf.zeros(shape, tensor.dtype) for shape, tensor in zip(shapes, outputs, strict=True)
        ]


def _has_zeros(tensor: Any) -> bool:
    """Returns whether zeros can take the place of a symbolic tensor; sizes may be unknown."""
    return tensor.shape.rank is not None and tensor.dtype not in (tf.variant, tf.resource)


@dataclass
class _Active:
    """The guard of the present step; None if it has none."""

    guard: CallGuard | None = None


@STATE.value(survives_fork=False)
def _active() -> _Active:
    """Returns the guard of this process, whose steps follow each other."""
    return _Active()


def active_guard() -> CallGuard | None:
    """Returns the guard of the present step; None if it has none."""
    return _active().guard


@contextlib.contextmanager
def guarded_calls() -> Iterator[CallGuard]:
    """Guards the computations of a step."""
    _active().guard = guard = CallGuard()
    try:
        yield guard
    finally:
        _active().guard = None
