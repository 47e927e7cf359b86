"""Sends every gradient of a trainable variable through one LibraAllReduce while a step is traced.

`tf.GradientTape.gradient` is the one place through which hand-written steps get their gradients.
The graph that comes out averages correctly even if no pass ever touches it.
"""

import contextlib
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record as tf_record
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops import control_flow_util

from tf_libra.backends import library
from tf_libra.tracing import nested, sparse
from tf_libra.tracing.numerics import Watch
from tf_libra.tracing.variables import plain, variable_name

FLOATING = (tf.float16, tf.bfloat16, tf.float32, tf.float64)

# GradientTape.gradient is replaced for the duration of a trace, and threads may trace at once.
_TRACING = threading.RLock()


@dataclass(frozen=True)
class MarkedGradient:
    """One gradient that is all-reduced.

    Attributes:
        name: of its variable, made unique within the step.
        shape: static shape; None for a dimension that is not known.
        dtype: name of the dtype.
        num_bytes: size, 0 where the shape is not known.
        is_gathered: whether it is sparse, and its rows are gathered instead; no plan is about it.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    num_bytes: int
    is_gathered: bool = False

    @property
    def executed_as(self) -> str:
        """The tensor by which it is found in a graph."""
        return f"{self.name}/values" if self.is_gathered else self.name


def _one_process() -> tuple[int, int]:
    return 0, 1


@dataclass(frozen=True)
class Rules:
    """How the gradients of one training function are treated.

    Attributes:
        function: its identity, which no other one of this process has.
        sparse_as_dense: whether `IndexedSlices` are made dense instead of gathered.
        inner_gradients: what becomes of gradients that an outer tape differentiates again:
            "average" or "local"; None refuses them.
        place: rank and world size, asked for when something is gathered.
        watch: is told of all gradients; None where nobody asks whether they are finite.
    """

    function: str = ""
    sparse_as_dense: bool = False
    inner_gradients: str | None = None
    place: Callable[[], tuple[int, int]] = _one_process
    watch: Watch | None = None


@dataclass(frozen=True, eq=False)
class GradientCall:
    """One call of `GradientTape.gradient`, as far as it is about trainable variables.

    Attributes:
        names: of the variables.
        variables: which those are.
        raw: their gradients as they were computed.
        is_marked: whether what the call has returned is all-reduced.
        by_horovod: whether the tape is one of Horovod's, which all-reduces by itself.
    """

    names: tuple[str, ...]
    variables: tuple[Any, ...]
    raw: tuple[Any, ...]
    is_marked: bool
    by_horovod: bool = False


class Marks:
    """The gradients of one trace.

    Attributes:
        marked: those that are all-reduced; of each call of `gradient`, in backward order.
        calls: every call of `gradient`.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.marked: list[MarkedGradient] = []
        self.calls: list[GradientCall] = []
        self._known: dict[int, tuple[GradientCall, int]] = {}
        self._kept: list[Any] = []  # so that no id is used again
        self._taken: list[tuple[str, tf.Graph]] = []
        self._tracer = threading.get_ident()

    def is_tracing_thread(self) -> bool:
        """Whether it is the traced step that calls, and not another thread."""
        return threading.get_ident() == self._tracer

    def note(
        self,
        names: Sequence[str],
        gradients: Sequence[Any],
        variables: Sequence[Any],
        *,
        is_marked: bool,
        by_horovod: bool = False,
        results: Sequence[Any] = (),
    ) -> GradientCall:
        """Remembers gradients of variables, and what was returned in their place."""
        call = GradientCall(tuple(names), tuple(variables), tuple(gradients), is_marked, by_horovod)
        self.calls.append(call)
        for place in (gradients, results):
            for index, gradient in enumerate(place):
                for part in (gradient, getattr(gradient, "values", None)):
                    if part is not None:
                        self._known[id(part)] = (call, index)
                        self._kept.append(part)
        return call

    def find(self, tensor: Any) -> tuple[GradientCall, int] | None:
        """The gradient that a tensor is, if it is one: its call, and its place in that."""
        return self._known.get(id(tensor))

    def all_reduce(self, name: str, gradient: tf.Tensor, reduction: str = "average") -> tf.Tensor:
        """Writes the all-reduce of one gradient.

        Raises:
            ValueError: the dtype is none that is all-reduced.
        """
        name = self._name(name, gradient)
        reduced = self._all_reduce(name, gradient, reduction)
        self._watch([name], [gradient], [reduced])
        return reduced

    def average(self, names: Sequence[str], gradients: Sequence[Any]) -> list[Any]:
        """Writes what averages the gradients that one call has computed together.

        Args:
            names: of the variables, in the order in which they are to be written.
            gradients: tensors or `IndexedSlices`.

        Raises:
            ValueError: a dtype is none that is all-reduced.
        """
        unique, averages = [], []
        for name, gradient in zip(names, gradients, strict=True):
            unique.append(self._name(name, gradient))
            averages.append(self._average(unique[-1], gradient))
        self._watch(unique, gradients, averages)
        return averages

    def is_gathered(self, gradient: Any) -> bool:
        """Whether the rows of a gradient are gathered, instead of a dense one summed."""
        return isinstance(gradient, tf.IndexedSlices) and not self._rules.sparse_as_dense

    def _name(self, name: str, gradient: Any) -> str:
        if gradient.dtype not in FLOATING:
            allowed = ", ".join(dtype.name for dtype in FLOATING)
            raise ValueError(
                f"the gradient of {name!r} is {gradient.dtype.name}; allowed: {allowed}"
            )
        name = _unique(name, self._taken)
        self._taken.append((name, tf_ops.get_default_graph()))
        return name

    def _average(self, name: str, gradient: Any) -> Any:
        if not self.is_gathered(gradient):
            return self._all_reduce(name, tf.convert_to_tensor(gradient), "average")
        row = tuple(gradient.values.shape[1:].as_list())
        dtype = gradient.dtype.name
        self.marked.append(MarkedGradient(name, (None, *row), dtype, 0, is_gathered=True))
        return sparse.gathered(gradient, name, self._rules.function, *self._rules.place())

    def _all_reduce(self, name: str, gradient: tf.Tensor, reduction: str) -> tf.Tensor:
        shape = tuple(gradient.shape.as_list()) if gradient.shape.rank is not None else (None,)
        num_bytes = (gradient.shape.num_elements() or 0) * gradient.dtype.size
        self.marked.append(MarkedGradient(name, shape, gradient.dtype.name, num_bytes))
        (reduced,) = library.load().ops.libra_all_reduce(
            tensors=[gradient],
            tensor_names=[name],
            reduction=reduction,
            function=self._rules.function,
            name="LibraAllReduce",
        )
        return reduced

    def _watch(self, names: Sequence[str], local: Sequence[Any], averages: Sequence[Any]) -> None:
        if self._rules.watch is not None and names:
            self._rules.watch.note(names, local, averages)


@contextlib.contextmanager
def marking(
    step_name: str, left_alone: Container[tuple[str, ...]] = (), rules: Rules | None = None
) -> Iterator[Marks]:
    """While it lasts, gradients of variables are averaged over all ranks.

    Args:
        step_name: the function that is traced, for messages.
        left_alone: calls of `gradient`, by the names of their variables, that are not marked.
        rules: how gradients are treated.

    Yields:
        The gradients so far.

    Raises:
        ValueError: from `gradient`, for a variable that has none, inside of XLA, or of what is
            differentiated again; from `tf.gradients`, for variables; from the call of a
            `ConcreteFunction` that was made elsewhere and brings gradients.
    """
    rules = rules or Rules()
    with _TRACING:
        marks = Marks(rules)
        original = tf.GradientTape.gradient
        graph = tf_ops.get_default_graph()
        nested.mark_traced(rules.function)

        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            refuse_strategies(step_name, traced_here=tf_ops.get_default_graph() is graph)
            gradients = original(tape, target, sources, *args, **kwargs)
            if not marks.is_tracing_thread():  # someone else's tape, which is not traced here
                return gradients
            if not _stays_local(step_name, rules, sources):
                gradients = _mark(step_name, tape, sources, gradients, marks, left_alone)
            return gradients

        call_concrete = concrete_function.ConcreteFunction._call_flat

        def call_flat(concrete: Any, *args: Any, **kwargs: Any) -> Any:
            if marks.is_tracing_thread():
                why = nested.gradients_brought(concrete, rules.function)
                if why is not None:
                    raise ValueError(
                        f"{step_name} calls the ConcreteFunction {concrete.graph.name!r}, which was"
                        f" made elsewhere, computes gradients and {why}: they would not be averaged"
                        " over the ranks; call the tf.function that it was made from"
                    )
            return call_concrete(concrete, *args, **kwargs)

        with (
            replaced(tf.GradientTape, "gradient", gradient),
            replaced(tf, "gradients", _refusing(step_name, tf.gradients)),
            replaced(concrete_function.ConcreteFunction, "_call_flat", call_flat),
            nested.own_traces(rules.function),
        ):
            yield marks


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While it lasts, an attribute has another value."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _refusing(step_name: str, original: Any) -> Any:
    def gradients(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        for source in tf.nest.flatten(xs):
            if _is_trainable_variable(source):
                raise ValueError(
                    f"{step_name} takes the gradient of {variable_name(source)!r} by tf.gradients,"
                    " where it is not averaged over the ranks: use tf.GradientTape"
                )
        return original(ys, xs, *args, **kwargs)

    return gradients


def _stays_local(step_name: str, rules: Rules, sources: Any) -> bool:
    """Whether gradients are left as they are, because an outer tape differentiates them again."""
    variables = [one for one in tf.nest.flatten(sources) if _is_trainable_variable(one)]
    if not variables or not tf_record.could_possibly_record():
        return False
    if rules.inner_gradients is None:
        raise ValueError(
            f"{step_name} takes the gradient of variable {variable_name(variables[0])!r} inside of"
            " another GradientTape, which differentiates it again. Say inner_gradients='average'"
            " where it is to be that of all ranks' data, as for a penalty on the gradient's size,"
            " or inner_gradients='local' where it is to be that of this rank's data alone, as when"
            " adapting to a task"
        )
    return rules.inner_gradients == "local"


def _mark(
    step_name: str,
    tape: Any,
    sources: Any,
    gradients: Any,
    marks: Marks,
    left_alone: Container[tuple[str, ...]],
) -> Any:
    flat_sources = tf.nest.flatten(sources)
    flat_gradients = tf.nest.flatten(gradients, expand_composites=False)
    results = list(flat_gradients)
    chosen = [i for i, source in enumerate(flat_sources) if _is_trainable_variable(source)]
    variables = [flat_sources[i] for i in chosen]
    raw = [flat_gradients[i] for i in chosen]
    names = tuple(variable_name(variable) for variable in variables)
    # Horovod's tapes average what they compute. None is for the script to deal with, then.
    by_horovod = hasattr(tape, "_allreduce_grads")
    if by_horovod or names in left_alone:
        marks.note(names, raw, variables, is_marked=False, by_horovod=by_horovod)
        return gradients
    for name, one in zip(names, raw, strict=True):
        _check(step_name, name, one)
    # What is gathered comes last: no plan is about it, and it is to hold up nothing.
    order = sorted(backward_order(raw, range(len(chosen))), key=lambda i: marks.is_gathered(raw[i]))
    averages = marks.average([names[i] for i in order], [raw[i] for i in order])
    for i, average in zip(order, averages, strict=True):
        results[chosen[i]] = average
    marks.note(names, raw, variables, is_marked=True, results=[results[i] for i in chosen])
    return tf.nest.pack_sequence_as(gradients, results)


def refuse_strategies(step_name: str, traced_here: bool = True) -> None:
    """Raises `ValueError` in the scope of a `tf.distribute` strategy, which averages by itself."""
    if traced_here and tf.distribute.has_strategy():
        raise ValueError(
            f"{step_name} runs under {type(tf.distribute.get_strategy()).__name__}, whose"
            " all-reduces TF-Libra does not plan: train either with the strategy or with"
            " tf_libra.optimize under Horovod, without strategy.run and strategy.scope"
        )


def _check(step_name: str, variable_name: str, gradient: Any) -> None:
    if control_flow_util.GraphOrParentsInXlaContext(tf_ops.get_default_graph()):
        raise ValueError(
            f"{step_name} is compiled with jit_compile=True, and XLA cannot call the"
            " all-reduce; remove jit_compile=True from the training step"
        )
    if gradient is None:
        raise ValueError(
            f"{step_name} computes no gradient for variable {variable_name!r} (it is None): take"
            " it out of the variables that the gradient is asked for, or use it in the loss"
        )


def backward_order(gradients: Sequence[Any], labels: Sequence[int]) -> list[int]:
    """Labels of the gradients in the order in which backward computation can produce them.

    A gradient is as late as the longest chain of ops that leads to it is long. Of equals the one
    of the later variable comes first: variables are made in forward order.

    Args:
        gradients: tensors or `IndexedSlices` of the graph that is being traced.
        labels: one per gradient.
    """
    depth: dict[Any, int] = {}
    # Ops are listed in the order in which they were made, so inputs come before consumers.
    for operation in tf_ops.get_default_graph().get_operations():
        inputs = [depth[x.op] for x in operation.inputs if x.op in depth]
        depth[operation] = 1 + max(inputs, default=0)
    lateness = [
        max(depth.get(tensor.op, 0) for tensor in tf.nest.flatten(gradient, expand_composites=True))
        for gradient in gradients
    ]
    order = sorted(range(len(labels)), key=lambda i: (lateness[i], -i))
    return [labels[i] for i in order]


def _unique(name: str, taken: list[tuple[str, tf.Graph]]) -> str:
    graph = tf_ops.get_default_graph()
    others = {
        other
        for other, where in taken
        if other.startswith(name) and not _are_traces_of_one_function(graph, where)
    }
    candidates = (f"{name}#{i}" if i else name for i in range(len(others) + 1))
    return next(candidate for candidate in candidates if candidate not in others)


def _are_traces_of_one_function(one: tf.Graph, other: tf.Graph) -> bool:
    """Whether these are, or are in, two traces of the same nested function.

    TensorFlow traces a function twice if the first trace makes variables, and again for other
    shapes. The gradients of each trace are then the same ones.
    """
    mine, theirs = _outermost_first(one), _outermost_first(other)
    for here, there in zip(mine, theirs, strict=False):
        if here is not there:
            return bool(here.name == there.name)
    return False


def _outermost_first(graph: Any) -> list[Any]:
    graphs = [graph]
    while (outer := getattr(graphs[-1], "outer_graph", None)) is not None:
        graphs.append(outer)
    return graphs[::-1]


def _is_trainable_variable(source: Any) -> bool:
    return isinstance(plain(source), tf.Variable)
