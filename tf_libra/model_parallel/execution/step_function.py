"""One rank's part of a step as a function of TensorFlow, in which no Python runs between tasks."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.execution.step_executor import TaskSpan

Run = Callable[[Sequence[Any], float], tuple[list[Any], list[TaskSpan]]]
"""Runs a step with its arguments, given when it began; returns its results and spans."""


class StepClock:
    """Reads the time between the parts of a step, in Python or in the function that is traced.

    In a function, each part also waits for the one before, as it does in Python. So a rank waits
    for no message while it computes: if the computation failed, the wait would end the job.
    """

    def __init__(self, began: float, parts: contextlib.ExitStack) -> None:
        """Begins the first part.

        Args:
            began: seconds since the epoch when the step began.
            parts: is closed by the caller after the last part.
        """
        self._began, self._after = began, parts
        self._num_ops = 0

    def read(self) -> Any:
        """Ends a part, and returns its end in seconds after the step's beginning.

        In a function it is a tensor of seconds since the epoch.
        """
        if tf.executing_eagerly():
            return time.time() - self._began
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
            run: runs the step in Python or in a function; spans have times of a `StepClock`.
            arguments: arguments of these shapes.
        """
        self._spans: list[TaskSpan] = []

        def step(*tensors: Any) -> list[Any]:
            results, self._spans = run(tensors, 0.0)
            times = [(span.start_seconds, span.stop_seconds) for span in self._spans]
            return [*results, tf.stack(times)]

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in arguments]
        self._function = tf.function(step, autograph=False).get_concrete_function(*specs)

    def __call__(self, arguments: Sequence[Any], began: float) -> tuple[list[Any], list[TaskSpan]]:
        """Runs a step; see `Run`. A call through the public interface would take longer."""
        captured = self._function.captured_inputs
        *results, times = self._function.inference_fn.call_flat(*arguments, *captured)
        spans = [
            replace(span, start_seconds=start - began, stop_seconds=stop - began)
            for span, (start, stop) in zip(self._spans, times.numpy().tolist(), strict=True)
        ]
        return results, spans
