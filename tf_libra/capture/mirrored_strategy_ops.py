"""Recognizes gradients that a `MultiWorkerMirroredStrategy` all-reduces while a step is traced.

Every all-reduce of such a strategy ends in `CollectiveAllReduce._all_reduce`, whether an
optimizer, a replica context, `strategy.reduce` or an aggregated variable asks for it. That method
packs its inputs in the order in which variables are listed, and writes a collective per pack.
It is replaced during a trace. An input is a gradient in two cases:

- `tf.GradientTape.gradient` has returned it, or it was made of such a result in the same shape;
- the inputs have the number and shapes of one call's results, if a function or an accumulator
  lies between.

A planned `LibraAllReduce` with the same reduction then replaces the collective. All other inputs
stay with the strategy: metrics, statistics, sparse gradients.

Keras' `LossScaleOptimizer` reduces nothing if the rank's gradients are not finite. Its verdict
becomes that of all ranks.

A tensor that is mistaken for a gradient is reduced over the same workers in either case.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.capture.backward_order import backward_order
from tf_libra.capture.dataflow.traced_graph import TracedGraph
from tf_libra.capture.gradient_provenance import GradientOrigin, origins
from tf_libra.capture.gradient_registry import FLOATING, GradientCall, GradientRegistry
from tf_libra.internal import patches, patching

_KINDS = {tf.distribute.ReduceOp.SUM: "sum", tf.distribute.ReduceOp.MEAN: "average"}


class StrategyReductions:
    """The inputs of the strategy's all-reduces in one trace.

    Attributes:
        left: gradients that the strategy reduces, with the reason, by name.
    """

    def __init__(self, step_name: str, registry: GradientRegistry) -> None:
        """Starts without inputs."""
        self._step_name = step_name
        self._registry = registry
        self.left: dict[str, str] = {}

    def averaged(self, graph: Any, trace: TracedGraph) -> set[int | str]:
        """Returns no variables: no call of `gradient` is averaged in the first place."""
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
        """Replaces `CollectiveAllReduce._all_reduce`, which is `original`.

        Raises:
            ValueError: a worker has several replicas.
        """
        flat = tf.nest.flatten(value)
        names = self._names(flat, collective)
        planned = [i for i, name in enumerate(names) if name is not None]
        if not planned or reduce_op not in _KINDS:
            return original(collective, reduce_op, value, replica, options)
        reject_several_replicas(self._step_name, collective._devices)
        results = list(flat)
        with tf.device(collective._devices[replica]):
            tensors = {i: tf.convert_to_tensor(flat[i]) for i in planned}
            for i in backward_order([tensors[i] for i in planned], planned):
                results[i] = self._registry.all_reduce(names[i], tensors[i], _KINDS[reduce_op])
        rest = [i for i, name in enumerate(names) if name is None]
        if rest:
            others = original(collective, reduce_op, [flat[i] for i in rest], replica, options)
            for i, other in zip(rest, others, strict=True):
                results[i] = other
        return tf.nest.pack_sequence_as(value, results)

    def _names(self, inputs: Sequence[Any], collective: Any) -> list[Any]:
        """Returns the name under which each input is planned; None to leave it to the strategy."""
        names = self._gradient_names(inputs)
        if not any(names):
            return names
        _, world_size = self._registry.rank_and_size()
        if collective._group_size != world_size * len(collective._devices):
            reason = f"among {collective._group_size} of {world_size} workers"
            self.left.update({name: reason for name in names if name is not None})
            return [None] * len(names)
        for i, value in enumerate(inputs):
            reason = "" if names[i] is None else self._unsupported_reason(value)
            if reason:
                self.left[names[i]] = reason
                names[i] = None
        return names

    def _gradient_names(self, inputs: Sequence[Any]) -> list[Any]:
        made_of = [origins(self._registry, _values(value)) for value in inputs]
        names = [_name_of(*pair) for pair in zip(inputs, made_of, strict=True)]
        if any(name is not None for name in names):
            # A scalar among gradients is one; a lone scalar may be a metric made of gradients.
            return [_name_of(*pair, scalars=True) for pair in zip(inputs, made_of, strict=True)]
        if all(_values(value).shape.rank == 0 for value in inputs):
            return names
        for call in reversed(self._registry.calls):
            present = [i for i, raw in enumerate(call.raw) if raw is not None]
            if len(present) == len(inputs) and all(
                _are_alike(call.raw[i], value) for i, value in zip(present, inputs, strict=True)
            ):
                return [call.names[i] for i in present]
        return names

    def _unsupported_reason(self, value: Any) -> str:
        if _values(value).dtype not in FLOATING:
            return f"dtype={_values(value).dtype.name}"
        return "IndexedSlices" if self._registry.is_gathered(value) else ""


def reject_several_replicas(step_name: str, devices: Sequence[str]) -> None:
    """Raises `ValueError` if a worker has several replicas, and so several sets of gradients."""
    if len(devices) > 1:
        raise ValueError(
            f"{step_name} runs under a MultiWorkerMirroredStrategy with {len(devices)} replicas in"
            f" each worker ({', '.join(devices)}), and TF-Libra plans all-reduces between"
            " processes: start one worker per GPU and make only that GPU visible to it"
            " (CUDA_VISIBLE_DEVICES)"
        )


def _values(value: Any) -> Any:
    return value.values if isinstance(value, tf.IndexedSlices) else value


def _name_of(value: Any, made_of: Sequence[GradientOrigin], scalars: bool = False) -> str | None:
    """Returns the name of the gradient that an input is, or was made of in the same shape."""
    may_be_made = scalars or _values(value).shape.rank != 0
    for origin in made_of:
        if origin.is_itself or (may_be_made and _has_shape_of(origin.call, origin.index, value)):
            return origin.name
    return None


def _has_shape_of(call: GradientCall, index: int, value: Any) -> bool:
    """Returns whether an input has the shape of a gradient that it was made of."""
    raw = call.raw[index]
    if isinstance(raw, tf.IndexedSlices) and isinstance(value, tf.IndexedSlices):
        return True
    return bool(_shape(raw).is_compatible_with(_shape(value)))


def _are_alike(raw: Any, value: Any) -> bool:
    return isinstance(raw, tf.IndexedSlices) == isinstance(value, tf.IndexedSlices) and (
        raw.dtype == value.dtype and bool(_shape(raw).is_compatible_with(_shape(value)))
    )


def _shape(gradient: Any) -> tf.TensorShape:
    return gradient.shape if gradient.shape is not None else tf.TensorShape(None)


@contextlib.contextmanager
def intercept_reductions(
    step_name: str, registry: GradientRegistry
) -> Iterator[StrategyReductions]:
    """Writes the strategy's all-reduces of gradients as ours while the context lasts.

    Args:
        step_name: name of the traced function, for messages.
        registry: the gradients of the trace.

    Yields:
        The inputs of the strategy so far.
    """
    reductions = StrategyReductions(step_name, registry)

    def make(original: Any) -> Any:
        def call(collective: Any, reduce_op: Any, value: Any, replica: int, options: Any) -> Any:
            if not registry.is_tracing_thread():
                return original(collective, reduce_op, value, replica, options)
            return reductions.all_reduce(original, collective, reduce_op, value, replica, options)

        return call

    def make_check(original: Any) -> Any:
        def check_finite(optimizer: Any, gradients: Any) -> Any:
            finite = original(optimizer, gradients)
            if not registry.is_tracing_thread():
                return finite
            return registry.all_true(finite, "loss_scale/is_finite")

        return check_finite

    with contextlib.ExitStack() as stack:
        stack.enter_context(patching.replaced(patches.COLLECTIVE_ALL_REDUCE, make))
        if patches.CHECK_FINITE.exists():
            stack.enter_context(patching.replaced(patches.CHECK_FINITE, make_check))
        yield reductions
