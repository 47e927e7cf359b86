"""Tracing of a step for batches of any size."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.capture.gradient_registry import GradientRegistry, ReductionPolicy
from tf_libra.capture.instrumented_function import (
    InstrumentedFunction,
    Trace,
    as_tf_function,
    step_name,
)
from tf_libra.internal import tf_internal
from tf_libra.model_parallel.capture.horovod_reductions import find_reduced_variables
from tf_libra.model_parallel.capture.recorded_step import RecordedStep
from tf_libra.model_parallel.capture.trace_hooks import TraceHooks


class StepRecorder:
    """Traces one step for batches of any size."""

    def __init__(self, function: Callable[..., Any], joins_rows: bool = False) -> None:
        """Traces nothing yet.

        Args:
            function: a `tf.function` or a plain function.
            joins_rows: see `ReductionPolicy`; else sparse gradients become dense.

        Raises:
            ValueError: the step is compiled by XLA.
        """
        self.name = step_name(function)
        self._step = _without_signature(function)
        self._selects_branches = self._returns_rows = False
        self._policy = ReductionPolicy(sparse_as_dense=not joins_rows, joins_rows=joins_rows)
        self.reset()

    def enable_branch_selection(self) -> None:
        """Turns conditions of the update into selections in later traces; drops all traces.

        Selections compute both branches, so they are for steps that cannot run otherwise; see
        `conditional_updates`.
        """
        self._selects_branches = True
        self.reset()

    def return_rows(self) -> None:
        """Lets the step have dense sums of rows as rows of all ids in later traces; drops all.

        It is for steps that compute with rows as their sum, but read the parts of `IndexedSlices`.
        """
        self._returns_rows = True
        self.reset()

    def reset(self) -> None:
        """Drops all traces, so that the next call retraces the step."""
        self._hooks: TraceHooks | None = None
        self._traces: list[tuple[TraceHooks, Trace]] = []
        self._function = InstrumentedFunction(
            self._step,
            self._on_traced,
            lambda: self._policy,
            self._recording,
        )

    @contextlib.contextmanager
    def _recording(self, registry: GradientRegistry) -> Iterator[None]:
        self._hooks = TraceHooks(self.name, registry, self._selects_branches, self._returns_rows)
        with self._hooks.installed():
            yield

    def _on_traced(self, trace: Trace) -> None:
        assert self._hooks is not None
        self._traces.append((self._hooks, trace))

    def record(self, args: Sequence[Any], kwargs: dict[str, Any]) -> RecordedStep:
        """Returns the step's trace for these arguments, some of which may be `tf.TensorSpec`s.

        If the step computes no gradient, all its ops precede an empty range of gradient ops.

        Raises:
            ValueError: the step contains something that stages do not support.
        """
        concrete = self._function.get_concrete_function(*args, **kwargs)
        [(hooks, trace)] = [pair for pair in self._traces if pair[0].graph is concrete.graph]
        horovod_variables = find_reduced_variables(
            self.name, hooks.graph, hooks.registry, hooks.unreduced_variables, trace.left
        )
        num_ops = len(hooks.graph.get_operations())
        return RecordedStep(
            self.name,
            concrete,
            tuple(hooks.layer_ends),
            hooks.gradient_ops or (num_ops, num_ops),
            hooks.variables | horovod_variables,
            tuple(hooks.nested_layers),
            hooks.has_rows,
            hooks.losses,
        )

    def input_order(self, concrete: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[int]:
        """Returns, for each input of a trace except captures, its index among the tensor arguments.

        Args:
            concrete: the trace.
            args: positional arguments with tensors of the traced sizes.
            kwargs: keyword arguments.
        """
        function, args = self._function.resolve_call(tuple(args))
        bound = tf_internal.canonicalize_function_inputs(
            args, kwargs, function._function_type, function._default_values, function._is_pure
        )
        function_type = concrete.function_type
        inputs = function_type.unpack_inputs(function_type.bind(*bound.args, **bound.kwargs))
        tensors = [leaf for leaf in tf.nest.flatten((args, kwargs)) if tf.is_tensor(leaf)]
        index_of = {id(tensor): index for index, tensor in enumerate(tensors)}
        return [index_of[id(tensor)] for tensor in inputs]


def _without_signature(function: Callable[..., Any]) -> Any:
    """Returns the step as a `tf.function` that is traced separately for each batch size."""
    template = as_tf_function(function)
    signature = getattr(template, "input_signature", None)
    # Reduced retracing would give the second size a trace for any size, with other ops.
    relaxes_shapes = getattr(template, "_reduce_retracing", False)
    if signature is None and not relaxes_shapes:
        return template
    return tf.function(
        template.python_function,
        autograph=template._autograph,
        jit_compile=template._jit_compile,
        experimental_autograph_options=template._experimental_autograph_options,
    )
