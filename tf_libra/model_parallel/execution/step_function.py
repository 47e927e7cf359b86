"""One rank's part of a step as a function of TensorFlow, in which no Python runs between tasks."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.execution.step_executor import TaskSpan

Run = Callable[[Sequence[Any]], tuple[list[Any], list[TaskSpan]]]


class StepClock:
    """Reads the time between the parts of a step, in Python or in the function that is traced.

    In a function, each part also waits for the one before, as it does in Python. So a rank waits
    for no message while it computes: if the computation failed, the wait would end the job.
    """

    def __init__(self) -> None:
        """Reads no time yet."""
        self._after = contextlib.ExitStack()
        self._num_ops = 0

    def __enter__(self) -> "StepClock":
        """Enters the first part."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leaves the last part."""
        self._after.close()

    def read(self) -> Any:
        """Ends a part, and returns its end in seconds since the epoch: a tensor in a function."""
        if tf.executing_eagerly():
            return time.time()
        ops = tf.compat.v1.get_default_graph().get_operations()
        part = [op for op in ops[self._num_ops :] if op.type != "Placeholder"]
        self._num_ops = len(ops)
        with tf.control_dependencies(part):
            seconds = tf.timestamp()
        self._after.close()
        self._after.enter_context(tf.control_dependencies([seconds]))
        return seconds


class StepFunction:
    """A rank's part of a step, for arguments of the same shapes."""

    def __init__(self, run: Run, arguments: Sequence[Any]) -> None:
        """Traces the function.

        Args:
            run: runs the step with the arguments, in Python or in a function, and returns its
                results, and spans whose times are those of a `StepClock`.
            arguments: arguments of these shapes.
        """
        self._spans: list[TaskSpan] = []

        def step(*tensors: Any) -> list[Any]:
            results, self._spans = run(tensors)
            times = [(span.start_seconds, span.stop_seconds) for span in self._spans]
            return [*results, tf.stack(times)]

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in arguments]
        self._function = tf.function(step, autograph=False).get_concrete_function(*specs)

    def __call__(self, arguments: Sequence[Any]) -> tuple[list[Any], list[TaskSpan]]:
        """Runs a step; see `run`. A call through the public interface would take longer."""
        captured = self._function.captured_inputs
        *results, times = self._function.inference_fn.call_flat(*arguments, *captured)
        spans = [
            replace(span, start_seconds=start, stop_seconds=stop)
            for span, (start, stop) in zip(self._spans, times.numpy().tolist(), strict=True)
        ]
        return results, spans
