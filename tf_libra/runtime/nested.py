"""Functions that a training step calls, which TensorFlow may have traced elsewhere before."""

import contextlib
from collections.abc import Iterator
from typing import Any

from tensorflow.python.eager.polymorphic_function import function_context


@contextlib.contextmanager
def own_traces(function: str) -> Iterator[None]:
    """While it lasts, every `tf.function` that is called is traced for `function` alone.

    A trace made elsewhere would bring gradients that nobody averages, and one made here would,
    called elsewhere, wait there for ranks that do not come. TensorFlow finds traces by the context
    of the call, of which the training function becomes a part.

    Args:
        function: identity of the training function.
    """
    original = function_context.make_function_context

    def make_function_context(scope_type: Any = None) -> Any:
        return original(scope_type=(scope_type, "tf_libra", function))

    function_context.make_function_context = make_function_context
    try:
        yield
    finally:
        function_context.make_function_context = original
