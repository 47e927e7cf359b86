"""Check that a step has executed the all-reduces that its graph is certain to have.

A graph that was rewritten wrongly may leave them out in silence, and train nothing.
"""

import ctypes
import json
from collections import Counter

from tf_libra.capture.unconditional_reduces import UnconditionalReduces
from tf_libra.coordination.control_plane import EngineError
from tf_libra.internal import native, tf_internal


def forget(function: str) -> None:
    """Counts from here on.

    Args:
        function: identity of the training function.
    """
    native.load().c.TfLibraTakeExecuted(function.encode(), None)


def check(function: str, certain: UnconditionalReduces, step: int, num_steps: int = 1) -> None:
    """Checks what was executed since `forget`, which takes microseconds if all is well.

    Args:
        function: identity of the training function.
        certain: what had to be.
        step: number of the step, or of the last one in the graph, for the message.
        num_steps: how many the graph has.

    Raises:
        EngineError: an all-reduce that nothing makes conditional was not executed.
    """
    if tf_internal.eager_context().is_async():
        tf_internal.wait_for_async_ops()
    c = native.load().c
    num_executed = c.TfLibraNumExecuted(function.encode())
    if num_executed == certain.num_tensors and not certain.has_conditional:
        return
    text = ctypes.c_char_p()
    c.TfLibraTakeExecuted(function.encode(), ctypes.byref(text))
    executed: dict[str, int] = json.loads(text.value or b"{}")
    missing = Counter(certain.times) - Counter(executed)
    if missing:
        steps = f"step {step} of {function} has"
        if num_steps > 1:
            first = step - num_steps + 1
            steps = f"steps {first} to {step} of {function}, which are one graph, have"
        raise EngineError(
            f"{steps} ended without {missing.total()} of the {certain.num_tensors} all-reduces"
            " that nothing in the graph makes conditional"
            f" ({next(iter(missing))!r} first), so that nothing, or not the same everywhere, was"
            " trained: the graph that ran is not the one that was traced. Without plans, and right,"
            " it runs"
            " after tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})"
        )
