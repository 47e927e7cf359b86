"""Check that a step has executed the all-reduces that its graph performs unconditionally.

A wrongly rewritten graph may silently leave them out, so that nothing is trained.
"""

import ctypes
import json
from collections import Counter

from tf_libra.capture.unconditional_reduces import UnconditionalReduces
from tf_libra.coordination.control_plane import EngineError
from tf_libra.internal import native, tf_internal


def start_counting(function: str) -> None:
    """Starts to count the all-reduces of a training function, given by its identity."""
    native.load().c.TfLibraTakeExecuted(function.encode(), None)


def check_executed(
    function: str, certain: UnconditionalReduces, step: int, num_steps: int = 1
) -> None:
    """Checks the all-reduces since `start_counting`; takes microseconds if none is missing.

    Args:
        function: identity of the training function.
        certain: all-reduces that must have been executed.
        step: number of the step, or of the last step in the graph, for the message.
        num_steps: number of steps in the graph.

    Raises:
        EngineError: an unconditional all-reduce was not executed.
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
            f" that the traced graph performs unconditionally (first: {next(iter(missing))!r}):"
            " TensorFlow has executed another graph, and the update is wrong. Train without plans:"
            " tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})"
        )
