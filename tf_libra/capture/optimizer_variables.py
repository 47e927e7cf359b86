"""Creation of the variables of Keras optimizers outside of the trace that first needs them.

Optimizers of Keras 3 create their variables in the first `apply_gradients`. If that is in a trace,
each variable adds a conditional to the trace and an initializer to trace and lift out of it: a
third of the time of all tracing. TensorFlow discards this trace and traces the step again, with
built optimizers, as it does if optimizers of Keras 2 create their variables, always eagerly.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_libra.internal import patches, patching


@contextlib.contextmanager
def create_outside_trace() -> Iterator[None]:
    """Creates variables of Keras optimizers eagerly while the context lasts."""
    if "keras" not in sys.modules:  # so the step has no such optimizer
        yield
        return
    with patching.replaced(patches.OPTIMIZER_VARIABLE, _eagerly):
        yield


def _eagerly(original: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with tf.init_scope():
            return original(*args, **kwargs)

    return call
