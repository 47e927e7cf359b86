"""The gradients of one trace, and the all-reduces that are written for them."""

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tf_libra.backends import collective_ops
from tf_libra.capture import gradient_encoding
from tf_libra.capture.backward_order import NamedGradient, unique_name
from tf_libra.capture.dataflow.ancestors import enclosing_graphs
from tf_libra.capture.finite_check import FiniteCheck
from tf_libra.capture.variables import variable_key
from tf_libra.internal import native

FLOATING = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


@dataclass(frozen=True)
class ReducedGradient:
    """One gradient that is all-reduced.

    Attributes:
        name: of its variable, made unique within the step.
        shape: static shape; None for a dimension that is not known.
        dtype: name of the dtype.
        num_bytes: size, 0 where the shape is not known.
        is_gathered: whether it is sparse, and its rows are gathered instead; no plan is about it.
        in_dataset: whether a function of tf.data computes it; no plan reaches it.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    num_bytes: int
    is_gathered: bool = False
    in_dataset: bool = False

    @property
    def is_planned(self) -> bool:
        """True if plans are about it."""
        return not (self.is_gathered or self.in_dataset)

    @property
    def executed_as(self) -> str:
        """The tensor by which it is found in a graph."""
        return f"{self.name}/values" if self.is_gathered else self.name


def _one_process() -> tuple[int, int]:
    return 0, 1


@dataclass(frozen=True)
class ReductionPolicy:
    """The treatment of the gradients of one training function.

    Attributes:
        function: its identity, which no other one of this process has.
        sparse_as_dense: whether `IndexedSlices` are made dense instead of gathered.
        inner_gradients: what becomes of gradients that an outer tape differentiates again:
            "average" or "local"; None rejects them.
        place: rank and world size, called when something is gathered.
        watch: is passed all gradients; None if it is not checked whether they are finite.
        by_strategy: whether a strategy of TensorFlow's reduces gradients: what it is given is
            all-reduced, and what `gradient` returns is left as it is.
        is_own: whether a variable is each rank's own, as the user says.
        names: rank 0's names of variables that this rank's Keras has numbered differently.
    """

    function: str = ""
    sparse_as_dense: bool = False
    inner_gradients: str | None = None
    place: Callable[[], tuple[int, int]] = _one_process
    watch: FiniteCheck | None = None
    by_strategy: bool = False
    is_own: Callable[[Any], bool] = lambda variable: False
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class GradientCall:
    """One call of `GradientTape.gradient`, as far as it is about trainable variables.

    Attributes:
        names: of the variables.
        variables: which those are.
        raw: their gradients as they were computed.
        is_marked: whether what the call has returned is all-reduced.
        by_horovod: whether the tape is one of Horovod's, which all-reduces by itself.
        is_jacobian: whether they are jacobians, of more dimensions than their variables.
    """

    names: tuple[str, ...]
    variables: tuple[Any, ...]
    raw: tuple[Any, ...]
    is_marked: bool
    by_horovod: bool = False
    is_jacobian: bool = False

    def is_about(self, keys: Set[int | str]) -> bool:
        """Returns whether it is about gradients of one of these variables, by `variable_key`."""
        return not self.is_jacobian and any(variable_key(one) in keys for one in self.variables)


@dataclass(frozen=True, eq=False)
class PerExampleGradient:
    """A gradient of one example, or of several side by side; no other rank has them.

    Attributes:
        name: of the variable.
        variable: which that is.
        gradient: as it was computed.
    """

    name: str
    variable: Any
    gradient: Any


class GradientRegistry:
    """The gradients of one trace.

    Attributes:
        key: names this registry, and no other one of any process.
        marked: those that are all-reduced; of each call of `gradient`, in backward order.
        missing: variables whose gradient is None.
        calls: every call of `gradient`, and of `jacobian`.
        of_examples: those of the function that is traced for one example; None: there is none.
        undecided: by id of a gradient that may not be differentiated, its variable's name.
        by_horovod: each op that all-reduces what Horovod was given, the variable whose gradient
            that is, or was made of, and whether it is that gradient.
    """

    def __init__(self, rules: ReductionPolicy) -> None:
        self.key = uuid.uuid4().hex
        self._rules = rules
        self._graph = tf.compat.v1.get_default_graph()
        self.marked: list[ReducedGradient] = []
        self.missing: list[str] = []
        self.calls: list[GradientCall] = []
        self.of_examples: list[PerExampleGradient] | None = None
        self.undecided: dict[int, str] = {}
        self.by_horovod: list[tuple[Any, Any, bool]] = []
        self._known: dict[int, tuple[GradientCall, int]] = {}
        self._kept: list[Any] = []  # so that no id is used again
        self._taken: list[NamedGradient] = []
        self._tracer = threading.get_ident()
        self._differentiating = 0

    def is_tracing_thread(self) -> bool:
        """Returns whether it is the traced step that calls, and not another thread.

        A strategy of TensorFlow's runs a replica of the step in a thread of its own, which adds to
        the same graph.
        """
        if threading.get_ident() == self._tracer:
            return True
        return self._rules.by_strategy and self._is_within(tf.compat.v1.get_default_graph())

    def _is_within(self, graph: Any) -> bool:
        is_inside = any(enclosing is self._graph for enclosing in enclosing_graphs(graph))
        return is_inside and self._graph.building_function

    def place(self) -> tuple[int, int]:
        """Rank and world size."""
        return self._rules.place()

    def is_own(self, variable: Any) -> bool:
        """Returns whether a variable is each rank's own, as the user says."""
        return self._rules.is_own(variable)

    @contextlib.contextmanager
    def differentiating(self) -> Iterator[None]:
        """While it lasts, TensorFlow computes a gradient of the step.

        What calls `gradient` then, as the gradient function of a custom gradient does, computes a
        part of that one.
        """
        self._differentiating += 1
        try:
            yield
        finally:
            self._differentiating -= 1

    @contextlib.contextmanager
    def of_each_example(self) -> Iterator[None]:
        """While it lasts, what is traced computes gradients of one example."""
        self.of_examples = []
        try:
            yield
        finally:
            self.of_examples = None

    @property
    def concerned(self) -> bool:
        """True if a gradient that is requested now is one of the step itself.

        What is computed while it is traced, as in `tf.init_scope`, is no part of it.
        """
        if tf.executing_eagerly():
            return False
        return self.is_tracing_thread() and not self._differentiating

    def note(
        self,
        names: Sequence[str],
        gradients: Sequence[Any],
        variables: Sequence[Any],
        *,
        is_marked: bool,
        by_horovod: bool = False,
        is_jacobian: bool = False,
        results: Sequence[Any] = (),
    ) -> GradientCall:
        """Remembers gradients of variables, and what was returned in their place."""
        call = GradientCall(
            tuple(names), tuple(variables), tuple(gradients), is_marked, by_horovod, is_jacobian
        )
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
        real = [gradient_encoding.as_real(gradient) for gradient in gradients]
        for name, gradient in zip(names, real, strict=True):
            unique.append(self._name(name, gradient))
            averages.append(self._average(unique[-1], gradient))
        self._watch(unique, real, averages)
        return [
            gradient_encoding.as_complex(average) if gradient.dtype.is_complex else average
            for gradient, average in zip(gradients, averages, strict=True)
        ]

    def true_on_all(self, verdict: tf.Tensor, name: str) -> tf.Tensor:
        """Writes what makes a rank's verdict that of all ranks: true if it is true on each.

        Args:
            verdict: a scalar.
            name: of what is judged, the same on every rank.
        """
        denied = collective_ops.all_reduce(
            tf.cast(tf.logical_not(verdict), tf.float32), name, self._rules.function
        )
        return tf.equal(denied, 0)

    def is_gathered(self, gradient: Any) -> bool:
        """Returns whether the rows of a gradient are gathered, instead of a dense one summed."""
        return isinstance(gradient, tf.IndexedSlices) and not self._rules.sparse_as_dense

    def _name(self, name: str, gradient: Any) -> str:
        if gradient.dtype not in FLOATING:
            allowed = ", ".join(dtype.name for dtype in FLOATING)
            raise ValueError(
                f"the gradient of {name!r} is {gradient.dtype.name}; allowed: {allowed}"
            )
        name = self._rules.names.get(name, name)
        shape = gradient.shape.as_list() if gradient.shape.rank is not None else None
        kind = (gradient.dtype, str(shape), self.is_gathered(gradient))
        name = unique_name(name, kind, self._taken)
        self._taken.append(NamedGradient(name, tf.compat.v1.get_default_graph(), kind))
        return name

    def _average(self, name: str, gradient: Any) -> Any:
        if not self.is_gathered(gradient):
            return self._all_reduce(name, tf.convert_to_tensor(gradient), "average")
        row = tuple(gradient.values.shape[1:].as_list())
        dtype = gradient.dtype.name
        self.marked.append(ReducedGradient(name, (None, *row), dtype, 0, is_gathered=True))
        return gradient_encoding.gathered(gradient, name, self._rules.function, *self.place())

    def _all_reduce(self, name: str, gradient: tf.Tensor, reduction: str) -> tf.Tensor:
        shape = tuple(gradient.shape.as_list()) if gradient.shape.rank is not None else (None,)
        num_bytes = (gradient.shape.num_elements() or 0) * gradient.dtype.size
        self.marked.append(ReducedGradient(name, shape, gradient.dtype.name, num_bytes))
        (reduced,) = native.load().ops.libra_all_reduce(
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
