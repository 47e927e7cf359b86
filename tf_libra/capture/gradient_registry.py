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
from tf_libra.capture.gradient_weight import GradientWeight
from tf_libra.capture.variables import variable_key
from tf_libra.internal import native

FLOATING = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


@dataclass(frozen=True)
class ReducedGradient:
    """One gradient that is all-reduced.

    Attributes:
        name: of its variable, made unique within the step.
        shape: static shape; None for an unknown dimension.
        dtype: name of the dtype.
        num_bytes: size; 0 if the shape is unknown.
        is_gathered: whether the gradient is sparse and its rows are gathered.
        in_dataset: whether a function of tf.data computes it, which no plan reaches.
        in_groups: whether groups of plans may include it.
        rounded_from: name of the wider dtype of its variable, from which the script itself has
            rounded it; None for a gradient in its variable's dtype.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    num_bytes: int
    is_gathered: bool = False
    in_dataset: bool = False
    in_groups: bool = True
    rounded_from: str | None = None

    @property
    def is_planned(self) -> bool:
        """True if plans include the gradient."""
        return self.in_groups and not self.in_dataset


def _single_process() -> tuple[int, int]:
    return 0, 1


@dataclass(frozen=True)
class ReductionPolicy:
    """The treatment of the gradients of one training function.

    Attributes:
        function: identity of the training function, unique in this process.
        sparse_as_dense: whether `IndexedSlices` are made dense instead of gathered; "rows" adds
            rows of the same id, over all ranks.
        joins_rows: whether rows, their values and ids, pass through all-reduces of their own, which
            a rank that trains the joint batch by itself leaves out; else ranks exchange rows.
        plans_rows: whether plans include the rows of sparse gradients.
        error_feedback: whether what rounding loses is added to the next gradients.
        inner_gradients: treatment of gradients that an outer tape differentiates again: "average",
            "local" or "reject".
        rank_and_size: returns rank and world size; called if something is gathered.
        watch: checks all gradients for finite values; None for no check.
        by_strategy: whether a TensorFlow strategy reduces gradients: its inputs are all-reduced,
            and the results of `gradient` stay as they are.
        is_rank_local: returns whether the user declares a variable rank-local.
        names: rank 0's names of variables that Keras has numbered differently on this rank.
        weight: weight of this rank's gradients before the reduction; None for a plain average.
    """

    function: str = ""
    sparse_as_dense: bool | str = False
    joins_rows: bool = False
    plans_rows: bool = False
    error_feedback: bool = False
    inner_gradients: str = "reject"
    rank_and_size: Callable[[], tuple[int, int]] = _single_process
    watch: FiniteCheck | None = None
    by_strategy: bool = False
    is_rank_local: Callable[[Any], bool] = lambda variable: False
    names: Mapping[str, str] = field(default_factory=dict)
    weight: GradientWeight | None = None


@dataclass(frozen=True, eq=False)
class GradientCall:
    """The trainable variables and gradients of one call of `GradientTape.gradient`.

    Attributes:
        names: of the variables.
        variables: with respect to which the call differentiates.
        raw: gradients before any reduction.
        is_reduced: whether TF-Libra all-reduces the call's results.
        by_horovod: whether the tape is Horovod's, which all-reduces by itself.
        is_jacobian: whether the gradients are jacobians, with more dimensions than the variables.
    """

    names: tuple[str, ...]
    variables: tuple[Any, ...]
    raw: tuple[Any, ...]
    is_reduced: bool
    by_horovod: bool = False
    is_jacobian: bool = False

    def has_gradient_of(self, keys: Set[int | str]) -> bool:
        """Returns whether the call computes the gradient of a variable in `keys`."""
        return not self.is_jacobian and any(
            variable_key(variable) in keys for variable in self.variables
        )


@dataclass(frozen=True, eq=False)
class PerExampleGradient:
    """A gradient of one example, or of several along a dimension; other ranks have other examples.

    Attributes:
        name: of the variable.
        variable: with respect to which it is the gradient.
        gradient: before any reduction.
    """

    name: str
    variable: Any
    gradient: Any


class GradientRegistry:
    """The gradients of one trace.

    Attributes:
        key: identifies this registry among those of all processes.
        reduced: the all-reduced gradients; those of one call of `gradient` in backward order.
        missing: variables whose gradient is None.
        calls: every call of `gradient` and of `jacobian`.
        per_example: gradients of the function that is traced for one example; None outside one.
        ambiguous_gradients: by id of a gradient that must not be differentiated, the name of its
            variable.
        by_horovod: each op that all-reduces an input of Horovod's, the variable of the gradient,
            and whether the input is the unmodified gradient.
    """

    def __init__(self, policy: ReductionPolicy) -> None:
        """Starts a registry for the graph that is being traced."""
        self.key = uuid.uuid4().hex
        self._policy = policy
        self._graph = tf.compat.v1.get_default_graph()
        self.reduced: list[ReducedGradient] = []
        self.missing: list[str] = []
        self.calls: list[GradientCall] = []
        self.per_example: list[PerExampleGradient] | None = None
        self.ambiguous_gradients: dict[int, str] = {}
        self.by_horovod: list[tuple[Any, Any, bool]] = []
        self._known: dict[int, tuple[GradientCall, int]] = {}
        self._references: list[Any] = []  # keeps the ids in `_known` from being reused
        self._taken: list[NamedGradient] = []
        self._tracer = threading.get_ident()
        self._differentiating = 0

    def is_tracing_thread(self) -> bool:
        """Returns whether the caller belongs to the traced step.

        A TensorFlow strategy runs a replica of the step in a separate thread, which adds to the
        same graph.
        """
        if threading.get_ident() == self._tracer:
            return True
        return self._policy.by_strategy and self._is_within(tf.compat.v1.get_default_graph())

    def _is_within(self, graph: Any) -> bool:
        is_inside = any(enclosing is self._graph for enclosing in enclosing_graphs(graph))
        return is_inside and bool(self._graph.building_function)

    def rank_and_size(self) -> tuple[int, int]:
        """Returns rank and world size."""
        return self._policy.rank_and_size()

    def is_rank_local(self, variable: Any) -> bool:
        """Returns whether the user declares a variable rank-local."""
        return self._policy.is_rank_local(variable)

    @contextlib.contextmanager
    def differentiating(self) -> Iterator[None]:
        """Marks the duration of a gradient computation of the step.

        A call of `gradient` in it, as by the gradient function of a custom gradient, computes a
        part of the outer gradient.
        """
        self._differentiating += 1
        try:
            yield
        finally:
            self._differentiating -= 1

    @contextlib.contextmanager
    def collecting_per_example(self) -> Iterator[None]:
        """Collects the gradients that are traced for one example."""
        self.per_example = []
        try:
            yield
        finally:
            self.per_example = None

    @property
    def should_reduce(self) -> bool:
        """True if a gradient that is requested now is the step's own.

        Eager computations during the trace, as in `tf.init_scope`, are no part of the step.
        """
        if tf.executing_eagerly():
            return False
        return self.is_tracing_thread() and not self._differentiating

    def record_call(
        self,
        names: Sequence[str],
        gradients: Sequence[Any],
        variables: Sequence[Any],
        *,
        is_reduced: bool,
        by_horovod: bool = False,
        is_jacobian: bool = False,
        results: Sequence[Any] = (),
    ) -> GradientCall:
        """Records gradients of variables, and the results that replace them."""
        call = GradientCall(
            tuple(names), tuple(variables), tuple(gradients), is_reduced, by_horovod, is_jacobian
        )
        self.calls.append(call)
        for tensors in (gradients, results):
            for index, gradient in enumerate(tensors):
                for part in (gradient, getattr(gradient, "values", None)):
                    if part is not None:
                        self._known[id(part)] = (call, index)
                        self._references.append(part)
        return call

    def find(self, tensor: Any) -> tuple[GradientCall, int] | None:
        """Returns the call and index of the gradient that a tensor is; None for other tensors."""
        return self._known.get(id(tensor))

    def all_reduce(self, name: str, gradient: tf.Tensor, reduction: str = "average") -> tf.Tensor:
        """Writes the all-reduce of one gradient.

        Raises:
            ValueError: the dtype cannot be all-reduced.
        """
        name = self._unique_name(name, gradient)
        reduced = self._all_reduce(name, gradient, reduction)
        self._watch([name], [gradient], [reduced])
        return reduced

    def average(self, names: Sequence[str], gradients: Sequence[Any]) -> list[Any]:
        """Writes the reductions of the gradients that one call has computed together.

        Args:
            names: of the variables, in the order in which the reductions are written.
            gradients: tensors or `IndexedSlices`.

        Raises:
            ValueError: a dtype cannot be all-reduced.
        """
        unique, averages = [], []
        real = [gradient_encoding.as_real(gradient) for gradient in gradients]
        for name, gradient in zip(names, real, strict=True):
            unique.append(self._unique_name(name, gradient))
            averages.append(self._average(unique[-1], gradient))
        self._watch(unique, real, averages)
        return [
            gradient_encoding.as_complex(average) if gradient.dtype.is_complex else average
            for gradient, average in zip(gradients, averages, strict=True)
        ]

    def all_true(self, verdict: tf.Tensor, name: str) -> tf.Tensor:
        """Writes the conjunction of all ranks' verdicts.

        Args:
            verdict: a boolean scalar.
            name: of the verdict, the same on every rank.
        """
        denied = collective_ops.all_reduce(
            tf.cast(tf.logical_not(verdict), tf.float32), name, self._policy.function
        )
        return tf.equal(denied, 0)

    def weighted(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns gradients, some of which may be None, times this rank's weight."""
        weight = self._policy.weight
        return [
            gradient if gradient is None or weight is None else weight.apply(gradient)
            for gradient in gradients
        ]

    def is_behind_groups(self, gradient: Any) -> bool:
        """Returns whether a gradient travels as rows that no plan includes."""
        return self.is_gathered(gradient) and not self._policy.plans_rows

    def is_gathered(self, gradient: Any) -> bool:
        """Returns whether a gradient travels as rows."""
        is_dense = self._policy.sparse_as_dense is True
        return isinstance(gradient, tf.IndexedSlices) and not is_dense

    def _unique_name(self, name: str, gradient: Any) -> str:
        if gradient.dtype not in FLOATING:
            allowed = ", ".join(dtype.name for dtype in FLOATING)
            raise ValueError(
                f"gradient of {name!r} has dtype {gradient.dtype.name}; allowed: {allowed}"
            )
        name = self._policy.names.get(name, name)
        shape = gradient.shape.as_list() if gradient.shape.rank is not None else None
        kind = (gradient.dtype, str(shape), self.is_gathered(gradient))
        name = unique_name(name, kind, self._taken)
        self._taken.append(NamedGradient(name, tf.compat.v1.get_default_graph(), kind))
        return name

    def _average(self, name: str, gradient: Any) -> Any:
        if not self.is_gathered(gradient):
            return self._all_reduce(name, tf.convert_to_tensor(gradient), "average")
        if self._policy.joins_rows:
            return self._join_rows(name, gradient)
        row = tuple(gradient.values.shape[1:].as_list())
        dtype = gradient.dtype.name
        adds = self._policy.sparse_as_dense == "rows"
        planned = not self.is_behind_groups(gradient)
        self.reduced.append(
            ReducedGradient(name, (None, *row), dtype, 0, is_gathered=True, in_groups=planned)
        )
        _, size = self.rank_and_size()
        exchange = gradient_encoding.RowExchange(name, self._policy.function, size, planned)
        return exchange.average(gradient) if adds else exchange.gather(gradient)

    def _join_rows(self, name: str, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        ids = tf.cast(gradient.indices, gradient_encoding.WIRE_ID)
        return tf.IndexedSlices(
            self._all_reduce(name, gradient.values, "average"),
            tf.cast(self._all_reduce(f"{name}/ids", ids, "average"), gradient.indices.dtype),
            gradient.dense_shape,
        )

    def _all_reduce(self, name: str, gradient: tf.Tensor, reduction: str) -> tf.Tensor:
        shape = tuple(gradient.shape.as_list()) if gradient.shape.rank is not None else (None,)
        num_bytes = (gradient.shape.num_elements() or 0) * gradient.dtype.size
        self.reduced.append(ReducedGradient(name, shape, gradient.dtype.name, num_bytes))
        (reduced,) = native.load().ops.libra_all_reduce(
            tensors=[gradient],
            ends=[],
            tensor_names=[name],
            reduction=reduction,
            function=self._policy.function,
            error_feedback=self._policy.error_feedback,
            name="LibraAllReduce",
        )
        return reduced

    def _watch(self, names: Sequence[str], local: Sequence[Any], averages: Sequence[Any]) -> None:
        if self._policy.watch is not None and names:
            self._policy.watch.add_to_graph(names, local, averages)
