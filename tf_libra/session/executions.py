"""Whether a step has executed the all-reduces that its graph is certain to have.

A graph that was rewritten wrongly may leave them out in silence, and train nothing.
"""

import ctypes
import json

from tensorflow.python.eager import context as tf_context

from tf_libra.backends import library
from tf_libra.backends.engine import EngineError
from tf_libra.tracing.certain import Certain


def forget(function: str) -> None:
    """Counts from here on.

    Args:
        function: identity of the training function.
    """
    library.load().c.TfLibraTakeExecuted(function.encode(), None)


def check(function: str, certain: Certain, step: int) -> None:
    """Checks what was executed since `forget`, which takes microseconds if all is well.

    Args:
        function: identity of the training function.
        certain: what had to be.
        step: number of the step, for the message.

    Raises:
        EngineError: an all-reduce that nothing makes conditional was not executed.
    """
    if tf_context.context().is_async():
        tf_context.async_wait()
    c = library.load().c
    num_executed = c.TfLibraNumExecuted(function.encode())
    if num_executed == certain.num_tensors and not certain.perhaps_others:
        return
    text = ctypes.c_char_p()
    c.TfLibraTakeExecuted(function.encode(), ctypes.byref(text))
    executed: dict[str, int] = json.loads(text.value or b"{}")
    missing = [name for name, times in certain.times.items() if executed.get(name, 0) < times]
    if missing:
        raise EngineError(
            f"step {step} of {function} has ended without {len(missing)} of the"
            f" {len(certain.times)} all-reduces that nothing in its graph makes conditional"
            f" ({missing[0]!r} first), so that nothing, or not the same everywhere, was trained:"
            " the graph that ran is not the one that was traced. Without plans, and right, it runs"
            " after tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})"
        )
