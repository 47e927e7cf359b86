"""Hooks that record layer ends and gradients while a step is traced for one device."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.capture.gradient_registry import GradientRegistry
from tf_libra.capture.variables import plain, variable_name
from tf_libra.internal import patches, patching, tf_internal
from tf_libra.model_parallel.capture import conditional_updates
from tf_libra.model_parallel.capture.recorded_step import REDUCTION, LayerEnd

_TRACING = threading.local()  # `hooks`: those of the trace in progress on this thread


@tf.autograph.experimental.do_not_convert
def boundary(x: Any) -> Any:
    """Marks the end of a layer, where a pipeline may be cut.

        def call(self, x):
            x = tf_libra.boundary(self.encoder(x))
            return self.decoder(x)

    Keras' Sequential and functional models need no boundaries. A boundary has no effect on a step
    that does not run as a pipeline.

    Args:
        x: the layer's output: a tensor, or a structure of tensors.

    Returns:
        The same values.

    Raises:
        ValueError: the call is inside a loop, a condition or a nested `tf.function`, where a
            pipeline cannot be cut; or x contains no tensor of real or complex numbers.
    """
    hooks: TraceHooks | None = getattr(_TRACING, "hooks", None)
    return x if hooks is None else hooks.end_layer("boundary", x, is_explicit=True)


class TraceHooks:
    """Replacements of TensorFlow and Keras functions that record one trace.

    Attributes:
        graph: the graph of the trace.
        registry: the gradients of the trace.
        layer_ends: ends of layers so far.
        gradient_ops: half-open range of the ops that compute gradients; None before there are any.
        variables: trained variables by name of the op that reduces their gradient.
        unreduced_variables: variables whose gradients pass through no reduction.
        nested_layers: names of layers that ended outside of `graph`.
        has_rows: whether a gradient is reduced as rows.
        losses: names of the ops whose gradient the step computes.
    """

    def __init__(
        self,
        name: str,
        registry: GradientRegistry,
        selects_branches: bool,
        returns_rows: bool = False,
    ) -> None:
        """Starts recording the current default graph.

        Args:
            name: name of the step.
            registry: gradient registry of the trace.
            selects_branches: whether conditions of the update become selections.
            returns_rows: whether the step gets a dense sum of rows as the rows of all ids.
        """
        self.graph: Any = tf.compat.v1.get_default_graph()
        self.registry = registry
        self.layer_ends: list[LayerEnd] = []
        self.gradient_ops: tuple[int, int] | None = None
        self.variables: dict[str, Any] = {}
        self.unreduced_variables: list[Any] = []
        self.nested_layers: list[str] = []
        self.has_rows = False
        self.losses: tuple[str, ...] = ()
        self._name = name
        self._selects_branches, self._returns_rows = selects_branches, returns_rows
        self._keras_stack: list[Any] = []  # Keras layers whose call is in progress
        self._name_counts: dict[str, int] = {}

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Replaces the functions for the duration of the context."""
        with contextlib.ExitStack() as stack:
            for patch, make in {
                patches.GRADIENT: self._gradient,
                patches.JACOBIAN: self._jacobian,
                patches.BATCH_JACOBIAN: self._jacobian,
                patches.KERAS_LAYER: self._keras_layer,
                patches.REPLICA_ALL_REDUCE: self._replica_all_reduce,
                patches.CONDITION: self._condition,
                patches.CAPTURE: self._capture,
            }.items():
                if patch.exists():
                    stack.enter_context(patching.replaced(patch, make))
            outer = getattr(_TRACING, "hooks", None)
            _TRACING.hooks = self
            try:
                yield
            finally:
                _TRACING.hooks = outer

    def end_layer(self, name: str, outputs: Any, is_explicit: bool = False) -> Any:
        """Records the end of a layer and returns its outputs, each behind an identity op.

        Args:
            name: name of the layer.
            outputs: structure of tensors and other values.
            is_explicit: whether the user calls `boundary`, so that a misplaced end is an error.
        """
        if tf.compat.v1.get_default_graph() is not self.graph:
            if is_explicit:
                raise ValueError(
                    f"{self._name}: tf_libra.boundary is called inside a loop, a condition or a"
                    " nested tf.function, where the step cannot be cut; call it in the step itself"
                )
            self.nested_layers.append(name)
            return outputs
        if self.gradient_ops is not None:  # ops after the gradients belong to no layer
            return outputs
        output_ops: list[str] = []
        gradient_ops: list[str] = []

        def mark(value: Any) -> Any:
            dtype = getattr(value, "dtype", tf.string)
            if not tf.is_tensor(value) or not (dtype.is_floating or dtype.is_complex):
                return value
            result = _identity_both_ways(value, gradient_ops)
            output_ops.append(result.op.name)
            mask = getattr(value, "_keras_mask", None)
            if mask is not None:
                result._keras_mask = mask
            return result

        result = tf.nest.map_structure(mark, outputs)
        if output_ops:
            num_ops = len(self.graph.get_operations())
            unique = self._unique_name(name)
            self.layer_ends.append(LayerEnd(unique, num_ops, tuple(output_ops), gradient_ops))
        elif is_explicit:
            raise ValueError(
                f"{self._name}: tf_libra.boundary needs at least one tensor of real or complex"
                f" numbers, got {outputs!r}"
            )
        return result

    def _unique_name(self, name: str) -> str:
        count = self._name_counts[name] = self._name_counts.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    # Replacements: each gets the original function and returns the one to call instead.

    def _keras_layer(self, original: Any) -> Any:
        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.registry.is_tracing_thread():
                return original(layer, *args, **kwargs)
            stack = self._keras_stack
            is_part_of_model = (
                bool(stack)
                and _is_container(stack[-1])
                and all(isinstance(parent, tf.keras.Model) for parent in stack)
                and not _is_container(layer)
            )
            self._keras_stack = [*stack, layer]
            try:
                outputs = original(layer, *args, **kwargs)
            finally:
                self._keras_stack = stack
            return self.end_layer(layer.name, outputs) if is_part_of_model else outputs

        return call

    def _gradient(self, original: Any) -> Any:
        def call(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.registry.should_reduce:
                return original(tape, target, sources, *args, **kwargs)
            variables = [plain(source) for source in tf.nest.flatten(sources)]
            self._check_gradient_call(variables)
            first = len(self.graph.get_operations())
            result = original(tape, target, sources, *args, **kwargs)
            self.gradient_ops = (first, len(self.graph.get_operations()))
            targets = [value for value in tf.nest.flatten(target) if tf.is_tensor(value)]
            self.losses = tuple(value.op.name for value in targets if value.graph is self.graph)
            for variable, reduced in zip(variables, tf.nest.flatten(result), strict=True):
                if reduced is not None:
                    self._record_gradient(variable, reduced)
            return self._with_rows(result) if self._returns_rows else result

        return call

    def _with_rows(self, result: Any) -> Any:
        """Returns gradients whose sums of rows, which stages reduce, are the rows of all ids."""

        def with_rows(gradient: Any) -> Any:
            found = None if gradient is None else self.registry.find(gradient)
            if found is None or not isinstance(found[0].raw[found[1]], tf.IndexedSlices):
                return gradient
            return tf.IndexedSlices(gradient, tf.range(gradient.shape[0]), tf.shape(gradient))

        return tf.nest.map_structure(with_rows, result)

    def _record_gradient(self, variable: Any, reduced: Any) -> None:
        if variable.dtype.is_complex:
            raise ValueError(
                f"{self._name}: variable {variable_name(variable)!r} has dtype"
                f" {variable.dtype.name}, and stages average real gradients only; use a"
                " data-parallel strategy"
            )
        parts = [reduced]
        if isinstance(reduced, tf.IndexedSlices):  # ids are cast after their reduction
            parts = [reduced.values, *reduced.indices.op.inputs]
        for part in parts:
            if part.op.type == REDUCTION:
                self.variables[part.op.name] = variable
                self.has_rows |= len(parts) > 1
            else:
                self.unreduced_variables.append(variable)

    def _check_gradient_call(self, sources: Sequence[Any]) -> None:
        if self.gradient_ops is not None:
            raise ValueError(
                f"{self._name} calls GradientTape.gradient more than once, for example for two"
                " models or two optimizers; stages need one loss and one call"
            )
        if tf.compat.v1.get_default_graph() is not self.graph:
            raise ValueError(
                f"{self._name} computes gradients inside a loop, a condition or a nested"
                " tf.function; stages need them in the step itself"
            )
        for source in sources:
            if not isinstance(source, tf.Variable):
                raise ValueError(
                    f"{self._name} computes a gradient with respect to {source!r}, which is no"
                    " variable; stages compute gradients of variables only"
                )

    def _replica_all_reduce(self, original: Any) -> Any:
        def call(context: Any, reduce_op: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.registry.is_tracing_thread() or context.num_replicas_in_sync != 1:
                return original(context, reduce_op, value, *args, **kwargs)
            # One op for all gradients would make the gradients of all stages depend on each other.
            return value

        return call

    def _capture(self, original: Any) -> Any:
        def call(graph: Any, tensor: Any, name: Any = None, **kwargs: Any) -> Any:
            if name is None and graph is self.graph and isinstance(tensor, tf_internal.TensorValue):
                name = "captured"  # the default contains a number that differs between ranks
            return original(graph, tensor, name, **kwargs)

        return call

    def _condition(self, original: Any) -> Any:
        def call(
            pred: Any, true_fn: Any = None, false_fn: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            if (
                self._selects_branches
                and self.gradient_ops is not None
                and tf.compat.v1.get_default_graph() is self.graph
                and tf.is_tensor(pred)
                and pred.dtype == tf.bool
                and callable(true_fn)
                and callable(false_fn)
            ):
                selected = conditional_updates.select_branches(
                    pred, (true_fn, false_fn), self._is_per_example
                )
                if selected is not None:
                    return selected[0]
            return original(pred, true_fn, false_fn, *args, **kwargs)

        return call

    def _is_per_example(self, tensor: Any) -> bool:
        """Returns whether a tensor depends on examples other than through reduced gradients."""
        if getattr(tensor, "graph", None) is not self.graph:
            return False
        captured = {id(inner) for _, inner in tensor.graph.captures}
        placeholders = conditional_updates.find_placeholders(
            tensor, stop_at=lambda op: op.type == REDUCTION
        )
        return any(
            id(placeholder) not in captured and placeholder.shape.rank != 0
            for placeholder in placeholders
        )

    def _jacobian(self, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            raise ValueError(f"{self._name} computes a jacobian, which stages do not support")

        return call


def _is_container(layer: Any) -> bool:
    """Returns whether a Keras layer is a Sequential or functional model."""
    functional = tf_internal.functional_model_class()
    kinds = (tf.keras.Sequential,) if functional is None else (tf.keras.Sequential, functional)
    return isinstance(layer, kinds)


def _identity_both_ways(tensor: Any, gradient_ops: list[str]) -> Any:
    """Returns the tensor through an identity op, whose gradient goes through another one.

    Args:
        tensor: the output of a layer.
        gradient_ops: gets the name of the identity op of the gradient.
    """

    def gradient(dy: Any) -> list[Any]:
        result = tf.identity(dy, name="tf_libra_boundary_gradient")
        gradient_ops.append(result.op.name)
        return [result]

    # `tf.custom_gradient` would keep the trace and all its variables alive until process exit.
    with tf_internal.stop_recording():
        result = tf.identity(tensor, name="tf_libra_boundary")
    tf_internal.record_operation("tf_libra_boundary", [result], [tensor], gradient)
    return result
