"""Traces a step as for one device, and notes where its layers end and gradients begin."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tf_libra.capture.gradient_registry import GradientRegistry, ReductionPolicy
from tf_libra.capture.instrumented_function import (
    InstrumentedFunction,
    Trace,
    as_tf_function,
    step_name,
)
from tf_libra.capture.variables import plain, variable_name
from tf_libra.internal import patches, tf_internal
from tf_libra.model_parallel.capture import conditional_updates
from tf_libra.model_parallel.capture.horovod_reductions import reduced_variables

REDUCTION = "LibraAllReduce"
"""The op through which each gradient of a trace goes."""

_RECORDING = threading.local()  # of the thread that traces


@dataclass(frozen=True)
class Ending:
    """The end of a layer in a trace.

    Attributes:
        name: of the layer, unique within the step.
        num_ops: how many ops the trace had by then.
        outputs: names of the ops that forward its outputs.
        gradients: names of the ops that forward the gradients of its outputs.
    """

    name: str
    num_ops: int
    outputs: tuple[str, ...]
    gradients: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RecordedStep:
    """A trace of a step.

    Attributes:
        name: of the step, for messages.
        concrete: the trace; each gradient of a variable goes through one `LibraAllReduce`.
        endings: of its layers, in the order of forward computation.
        gradient_ops: the half-open range of ops, in order of creation, that compute gradients.
        variables: by name of the op that all-reduces its gradient, each variable.
        endings_elsewhere: layers that end in another function or a loop, where no cut can be.
    """

    name: str
    concrete: Any
    endings: tuple[Ending, ...]
    gradient_ops: tuple[int, int]
    variables: dict[str, Any]
    endings_elsewhere: tuple[str, ...]

    @property
    def is_evaluation(self) -> bool:
        """True if the step computes no gradient, for example because of a flag."""
        return not self.variables

    def names(self) -> dict[int, str]:
        """Returns the names of the variables by id of their handles."""
        return {id(one.handle): variable_name(one) for one in self.concrete.graph.variables}

    def accumulators(self) -> set[int]:
        """Ids of the handles of variables that every replica writes, as metrics' are."""
        on_read = tf.VariableSynchronization.ON_READ
        variables = self.concrete.graph.variables
        return {id(one.handle) for one in variables if one.synchronization is on_read}

    def sums(self) -> set[int]:
        """Ids of the handles of variables of which all replicas' are added up, as metrics' are."""
        added = tf.VariableAggregation.SUM
        variables = self.concrete.graph.variables
        return {id(one.handle) for one in variables if one.aggregation is added}


@tf.autograph.experimental.do_not_convert
def boundary(x: Any) -> Any:
    """Says that a layer of the model ends here, so that a pipeline may be cut here.

        def call(self, x):
            x = tf_libra.boundary(self.encoder(x))
            return self.decoder(x)

    Sequential and functional models of Keras need none. A step that is not run as a pipeline is
    not changed by it.

    Args:
        x: the layer's output: a tensor, or a structure of tensors.

    Returns:
        The same values.

    Raises:
        ValueError: it is called where a pipeline cannot be cut: in a loop, a condition, or a
            `tf.function` that the step calls; or x has no tensor of real or complex numbers.
    """
    recorder: _Recorder | None = getattr(_RECORDING, "recorder", None)
    return x if recorder is None else recorder.end_layer("boundary", x, is_asked_for=True)


class _Recorder:
    def __init__(self, name: str, marks: GradientRegistry, selects: bool) -> None:
        self._selects = selects
        self.endings: list[Ending] = []
        self.gradient_ops: tuple[int, int] | None = None
        self.variables: dict[str, Any] = {}
        self.not_averaged: list[Any] = []  # variables of other gradients
        self.elsewhere: list[str] = []
        self.graph: Any = tf.compat.v1.get_default_graph()
        self._name = name
        self.marks = marks
        self._layers: list[Any] = []  # of Keras, that are being called
        self._names: dict[str, int] = {}

    def end_layer(self, name: str, outputs: Any, is_asked_for: bool = False) -> Any:
        if tf.compat.v1.get_default_graph() is not self.graph:
            if is_asked_for:
                raise ValueError(
                    f"{self._name}: tf_libra.boundary is called in a loop, a condition or another"
                    " tf.function, where no cut can be: call it in the step itself"
                )
            self.elsewhere.append(name)
            return outputs
        if self.gradient_ops is not None:  # what is computed later belongs to no layer
            return outputs
        handed: list[str] = []
        gradients: list[str] = []

        def hand_on(one: Any) -> Any:
            dtype = getattr(one, "dtype", tf.string)
            if not tf.is_tensor(one) or not (dtype.is_floating or dtype.is_complex):
                return one
            result = _handed_on(one, gradients)
            handed.append(result.op.name)
            mask = getattr(one, "_keras_mask", None)
            if mask is not None:
                result._keras_mask = mask
            return result

        result = tf.nest.map_structure(hand_on, outputs)
        if handed:
            count = len(self.graph.get_operations())
            self.endings.append(Ending(self._unique(name), count, tuple(handed), gradients))
        elif is_asked_for:
            raise ValueError(
                f"{self._name}: tf_libra.boundary is given {outputs!r}: a layer ends in tensors of"
                " real or complex numbers, one at least"
            )
        return result

    def _unique(self, name: str) -> str:
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    # What stands in for TensorFlow's and Keras' own.

    def keras_layer(self, original: Any) -> Any:
        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.marks.is_tracing_thread():
                return original(layer, *args, **kwargs)
            inside = self._layers
            is_part = (
                bool(inside)
                and _is_container(inside[-1])
                and all(isinstance(one, tf.keras.Model) for one in inside)
                and not _is_container(layer)
            )
            self._layers = [*inside, layer]
            try:
                outputs = original(layer, *args, **kwargs)
            finally:
                self._layers = inside
            return self.end_layer(layer.name, outputs) if is_part else outputs

        return call

    def gradient(self, original: Any) -> Any:
        def call(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.marks.concerned:
                return original(tape, target, sources, *args, **kwargs)
            flat = [plain(one) for one in tf.nest.flatten(sources)]
            self._check(flat)
            first = len(self.graph.get_operations())
            result = original(tape, target, sources, *args, **kwargs)
            self.gradient_ops = (first, len(self.graph.get_operations()))
            for variable, reduced in zip(flat, tf.nest.flatten(result), strict=True):
                if reduced is None:
                    continue
                if variable.dtype.is_complex:
                    raise ValueError(
                        f"{self._name}: the gradient of {variable_name(variable)!r} is"
                        f" {variable.dtype.name}: stages average real numbers only; strategies of"
                        " data parallelism train it"
                    )
                if reduced.op.type == REDUCTION:
                    self.variables[reduced.op.name] = variable
                else:
                    self.not_averaged.append(variable)
            return result

        return call

    def replica_all_reduce(self, original: Any) -> Any:
        def call(context: Any, reduce_op: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.marks.is_tracing_thread() or context.num_replicas_in_sync != 1:
                return original(context, reduce_op, value, *args, **kwargs)
            return value

        return call

    def capture(self, original: Any) -> Any:
        def call(graph: Any, tensor: Any, name: Any = None, **kwargs: Any) -> Any:
            if name is None and graph is self.graph and isinstance(tensor, tf_internal.TensorValue):
                name = "captured"
            return original(graph, tensor, name, **kwargs)

        return call

    def condition(self, original: Any) -> Any:
        def call(
            pred: Any, true_fn: Any = None, false_fn: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            if (
                self._selects
                and self.gradient_ops is not None
                and tf.compat.v1.get_default_graph() is self.graph
                and tf.is_tensor(pred)
                and pred.dtype == tf.bool
                and callable(true_fn)
                and callable(false_fn)
            ):
                selected = conditional_updates.selected(pred, (true_fn, false_fn), self._is_sample)
                if selected is not None:
                    return selected[0]
            return original(pred, true_fn, false_fn, *args, **kwargs)

        return call

    def _is_sample(self, tensor: Any) -> bool:
        """Returns whether a tensor depends on samples without being averaged."""
        if getattr(tensor, "graph", None) is not self.graph:
            return False
        captured = {id(inner) for _, inner in tensor.graph.captures}
        found = conditional_updates.graph_inputs(tensor, lambda op: op.type == REDUCTION)
        return any(id(one) not in captured and one.shape.rank != 0 for one in found)

    def jacobian(self, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            raise ValueError(f"{self._name} computes a jacobian, which stages cannot")

        return call

    def _check(self, sources: Sequence[Any]) -> None:
        if self.gradient_ops is not None:
            raise ValueError(
                f"{self._name} computes gradients by several calls of GradientTape.gradient, as of"
                " two models or two optimizers: stages are made of one loss and one call"
            )
        if tf.compat.v1.get_default_graph() is not self.graph:
            raise ValueError(
                f"{self._name} computes gradients in a loop, a condition or another tf.function:"
                " for stages compute them in the step itself"
            )
        for source in sources:
            if not isinstance(source, tf.Variable):
                raise ValueError(
                    f"{self._name} computes the gradient with respect to {source!r}, which is no"
                    " variable: stages compute those of variables only"
                )


def _is_container(layer: Any) -> bool:
    keras = tf.keras
    functional = tf_internal.functional_model_class()
    kinds = (keras.Sequential,) if functional is None else (keras.Sequential, functional)
    return isinstance(layer, kinds)


def _handed_on(tensor: Any, gradients: list[str]) -> Any:
    """The tensor through an op of its own, and its gradient through another."""

    def gradient(dy: Any) -> list[Any]:
        handed = tf.identity(dy, name="tf_libra_boundary_gradient")
        gradients.append(handed.op.name)
        return [handed]

    # `tf.custom_gradient` would keep the trace, and all variables with it, as long as the process.
    with tf_internal.stop_recording():
        result = tf.identity(tensor, name="tf_libra_boundary")
    tf_internal.record_operation("tf_libra_boundary", [result], [tensor], gradient)
    return result


class StepRecorder:
    """Traces one step, for batches of any size."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Traces nothing yet.

        Args:
            function: a `tf.function` or a plain function.

        Raises:
            ValueError: the step is compiled by XLA.
        """
        self.name = step_name(function)
        self._step = _without_signature(function)
        self._selects = False
        self.forget()

    def select(self) -> None:
        """From now on conditions of the update are selections, see `branches`; forgets all traces.

        Both branches are computed then, so it is for steps that could not run otherwise.
        """
        self._selects = True
        self.forget()

    def forget(self) -> None:
        """Forgets all traces, so that the next call of any kind retraces the step."""
        self._last: _Recorder | None = None
        self._traced: list[tuple[_Recorder, Trace]] = []
        self._function = InstrumentedFunction(
            self._step,
            self._on_traced,
            lambda: ReductionPolicy(sparse_as_dense=True),
            self._recording,
        )

    @contextlib.contextmanager
    def _recording(self, marks: GradientRegistry) -> Iterator[None]:
        recorder = self._last = _Recorder(self.name, marks, self._selects)
        with contextlib.ExitStack() as stack:
            for patch, make in {
                patches.GRADIENT: recorder.gradient,
                patches.JACOBIAN: recorder.jacobian,
                patches.BATCH_JACOBIAN: recorder.jacobian,
                patches.KERAS_LAYER: recorder.keras_layer,
                patches.REPLICA_ALL_REDUCE: recorder.replica_all_reduce,
                patches.CONDITION: recorder.condition,
                patches.CAPTURE: recorder.capture,
            }.items():
                if patch.exists():
                    stack.enter_context(patches.replaced(patch, make))
            before = getattr(_RECORDING, "recorder", None)
            _RECORDING.recorder = recorder
            try:
                yield
            finally:
                _RECORDING.recorder = before

    def _on_traced(self, trace: Trace) -> None:
        assert self._last is not None
        self._traced.append((self._last, trace))

    def record(self, args: Sequence[Any], kwargs: dict[str, Any]) -> RecordedStep:
        """Traces the step for these arguments, some of which may be `tf.TensorSpec`s.

        Where it takes no gradient, all of it is before any gradient's ops.

        Raises:
            ValueError: the step does what no pipeline can; named.
        """
        concrete = self._function.get_concrete_function(*args, **kwargs)
        [(recorder, trace)] = [one for one in self._traced if one[0].graph is concrete.graph]
        by_horovod = reduced_variables(
            self.name, recorder.graph, recorder.marks, recorder.not_averaged, trace.left
        )
        count = len(recorder.graph.get_operations())
        return RecordedStep(
            self.name,
            concrete,
            tuple(recorder.endings),
            recorder.gradient_ops or (count, count),
            recorder.variables | by_horovod,
            tuple(recorder.elsewhere),
        )

    def order(self, concrete: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[int]:
        """Returns, for each input of a trace except captures, its index among the tensor arguments.

        Args:
            concrete: the trace.
            args: positional arguments with tensors of the sizes that were traced.
            kwargs: keyword arguments.
        """
        function, args = self._function.called(tuple(args))
        bound = tf_internal.canonicalize_function_inputs(
            args, kwargs, function._function_type, function._default_values, function._is_pure
        )
        kind = concrete.function_type
        flat = kind.unpack_inputs(kind.bind(*bound.args, **bound.kwargs))
        leaves = [one for one in tf.nest.flatten((args, kwargs)) if tf.is_tensor(one)]
        places = {id(one): place for place, one in enumerate(leaves)}
        return [places[id(one)] for one in flat]


def _without_signature(function: Callable[..., Any]) -> Any:
    """The same step for batches of any size."""
    template = as_tf_function(function)
    signature = getattr(template, "input_signature", None)
    # It would trace the second size for any, with other ops.
    relaxes = getattr(template, "_reduce_retracing", False)
    if signature is None and not relaxes:
        return template
    return tf.function(
        template.python_function,
        autograph=template._autograph,
        jit_compile=template._jit_compile,
        experimental_autograph_options=template._experimental_autograph_options,
    )
