"""Recognises gradients that a `MultiWorkerMirroredStrategy` all-reduces while a step is traced.

Every all-reduce under such a strategy (optimizers, a replica context, `strategy.reduce`,
variables that are aggregated) ends in one method, `CollectiveAllReduce._all_reduce`, which packs
what it is given, in the order in which variables are listed, and writes a collective for each pack.
For the duration of a trace it is replaced (see `patches`). What it is given is a gradient if it is
one that `tf.GradientTape.gradient` has returned, or was made of one and has kept its shape; or if
as many tensors of the same shapes are given as one call of `gradient` has returned, as by a
function or an accumulator in between. Then a `LibraAllReduce` with the same reduction is written
for it, which is planned. All else stays with the strategy: metrics, statistics, sparse gradients.

Keras' `LossScaleOptimizer` asks, before it reduces, whether the rank's gradients are finite, and
reduces nothing if they are not. Its verdict is made that of all ranks.

Nothing is averaged that the script does not reduce, and nothing twice: what is taken for a gradient
is reduced over the same workers in either case.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.capture.backward_order import backward_order
from tf_libra.capture.dataflow.traced_graph import TracedGraph
from tf_libra.capture.gradient_provenance import GradientOrigin, origins
from tf_libra.capture.gradient_registry import FLOATING, GradientCall, GradientRegistry
from tf_libra.internal import patches

_KINDS = {tf.distribute.ReduceOp.SUM: "sum", tf.distribute.ReduceOp.MEAN: "average"}


class StrategyReductions:
    """The tensors that one trace hands to the strategy's all-reduces.

    Attributes:
        left: gradients that the strategy reduces: why not we, by name.
    """

    def __init__(self, step_name: str, marks: GradientRegistry) -> None:
        self._step_name = step_name
        self._marks = marks
        self.left: dict[str, str] = {}

    def averaged(self, graph: Any, trace: TracedGraph) -> set[int | str]:
        """Returns no variables: no call of `gradient` is marked in the first place."""
        return set()

    def check(self, graph: Any, trace: TracedGraph) -> None:
        """Accepts every graph: no gradient could be averaged twice, or not at all."""

    def all_reduce(
        self,
        original: Callable[..., Any],
        collective: Any,
        reduce_op: Any,
        value: Any,
        replica: int,
        options: Any,
    ) -> Any:
        """In place of `CollectiveAllReduce._all_reduce`, which `original` is.

        Raises:
            ValueError: there are several replicas in a worker.
        """
        flat = tf.nest.flatten(value)
        names = self._names(flat, collective)
        planned = [i for i, name in enumerate(names) if name is not None]
        if not planned or reduce_op not in _KINDS:
            return original(collective, reduce_op, value, replica, options)
        refuse_several_replicas(self._step_name, collective._devices)
        results = list(flat)
        with tf.device(collective._devices[replica]):
            tensors = {i: tf.convert_to_tensor(flat[i]) for i in planned}
            for i in backward_order([tensors[i] for i in planned], planned):
                results[i] = self._marks.all_reduce(names[i], tensors[i], _KINDS[reduce_op])
        rest = [i for i, name in enumerate(names) if name is None]
        if rest:
            others = original(collective, reduce_op, [flat[i] for i in rest], replica, options)
            for i, other in zip(rest, others, strict=True):
                results[i] = other
        return tf.nest.pack_sequence_as(value, results)

    def _names(self, given: Sequence[Any], collective: Any) -> list[Any]:
        """Under which each tensor is to be planned; None for what is left to the strategy."""
        found = self._found(given)
        if not any(found):
            return list(found)
        _, world_size = self._marks.place()
        if collective._group_size != world_size * len(collective._devices):
            why = f"among {collective._group_size} of {world_size} workers"
            self.left.update({name: why for name in found if name is not None})
            return [None] * len(found)
        for i, one in enumerate(given):
            if found[i] is not None and self._why_not(one):
                self.left[found[i]] = self._why_not(one)
                found[i] = None
        return found

    def _found(self, given: Sequence[Any]) -> list[Any]:
        made_of = [origins(self._marks, _values(one)) for one in given]
        names = [_name_of(*both) for both in zip(given, made_of, strict=True)]
        if any(name is not None for name in names):
            # A scalar among gradients is one; alone it may well be made of them to be shown.
            return [_name_of(*both, scalars=True) for both in zip(given, made_of, strict=True)]
        if all(_values(one).shape.rank == 0 for one in given):
            return names
        for call in reversed(self._marks.calls):
            there = [i for i, raw in enumerate(call.raw) if raw is not None]
            if len(there) == len(given) and all(
                _are_alike(call.raw[i], one) for i, one in zip(there, given, strict=True)
            ):
                return [call.names[i] for i in there]
        return names

    def _why_not(self, one: Any) -> str:
        if _values(one).dtype not in FLOATING:
            return f"dtype={_values(one).dtype.name}"
        return "IndexedSlices" if self._marks.is_gathered(one) else ""


def refuse_several_replicas(step_name: str, devices: Sequence[str]) -> None:
    """Raises `ValueError` for a worker that has several replicas: its gradients are many."""
    if len(devices) > 1:
        raise ValueError(
            f"{step_name} runs under a MultiWorkerMirroredStrategy with {len(devices)} replicas in"
            f" each worker ({', '.join(devices)}), and TF-Libra plans all-reduces between"
            " processes: start one worker for each GPU, which sees that GPU alone"
            " (CUDA_VISIBLE_DEVICES)"
        )


def _values(one: Any) -> Any:
    return one.values if isinstance(one, tf.IndexedSlices) else one


def _name_of(one: Any, made_of: Sequence[GradientOrigin], scalars: bool = False) -> str | None:
    """Returns the name of the gradient that `one` is, or was made of in the same shape."""
    may_be_made = scalars or _values(one).shape.rank != 0
    for origin in made_of:
        if origin.is_itself or (may_be_made and _is_of(origin.call, origin.index, one)):
            return origin.name
    return None


def _is_of(call: GradientCall, index: int, one: Any) -> bool:
    """Returns whether `one` has the shape of a gradient that it was made of."""
    raw = call.raw[index]
    if isinstance(raw, tf.IndexedSlices) and isinstance(one, tf.IndexedSlices):
        return True
    return bool(_shape(raw).is_compatible_with(_shape(one)))


def _are_alike(raw: Any, one: Any) -> bool:
    return isinstance(raw, tf.IndexedSlices) == isinstance(one, tf.IndexedSlices) and (
        raw.dtype == one.dtype and bool(_shape(raw).is_compatible_with(_shape(one)))
    )


def _shape(gradient: Any) -> tf.TensorShape:
    return gradient.shape if gradient.shape is not None else tf.TensorShape(None)


@contextlib.contextmanager
def recognizing(step_name: str, marks: GradientRegistry) -> Iterator[StrategyReductions]:
    """While it lasts, the strategy's all-reduces of gradients are written as ours.

    Args:
        step_name: the function that is traced, for messages.
        marks: the gradients of the trace.

    Yields:
        What the strategy was given so far.
    """
    reductions = StrategyReductions(step_name, marks)

    def make(original: Any) -> Any:
        def call(collective: Any, reduce_op: Any, value: Any, replica: int, options: Any) -> Any:
            if not marks.is_tracing_thread():
                return original(collective, reduce_op, value, replica, options)
            return reductions.all_reduce(original, collective, reduce_op, value, replica, options)

        return call

    def make_check(original: Any) -> Any:
        def check_finite(optimizer: Any, gradients: Any) -> Any:
            finite = original(optimizer, gradients)
            if not marks.is_tracing_thread():
                return finite
            return marks.true_on_all(finite, "loss_scale/is_finite")

        return check_finite

    with contextlib.ExitStack() as stack:
        stack.enter_context(patches.replaced(patches.COLLECTIVE_ALL_REDUCE, make))
        if patches.CHECK_FINITE.exists():
            stack.enter_context(patches.replaced(patches.CHECK_FINITE, make_check))
        yield reductions
