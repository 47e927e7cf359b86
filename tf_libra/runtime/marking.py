"""Sends every gradient of a trainable variable through one LibraAllReduce while a step is traced.

`tf.GradientTape.gradient` is the one place through which hand-written steps get their gradients.
The graph that comes out averages correctly even if no pass ever touches it.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops import control_flow_util

from tf_libra.runtime import library

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
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    num_bytes: int


@contextlib.contextmanager
def marking(step_name: str) -> Iterator[list[MarkedGradient]]:
    """While it lasts, gradients of variables are averaged over all ranks.

    Args:
        step_name: the function that is traced, for messages.

    Yields:
        The gradients marked so far, in backward order.

    Raises:
        ValueError: from `gradient`, for a variable that has none, or inside of XLA.
    """
    marked: list[MarkedGradient] = []
    taken: list[tuple[str, tf.Graph]] = []
    with _TRACING:
        original = tf.GradientTape.gradient

        tracer = threading.get_ident()

        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            gradients = original(tape, target, sources, *args, **kwargs)
            if threading.get_ident() != tracer:  # someone else's tape, which is not traced here
                return gradients
            return _mark(step_name, sources, gradients, marked, taken)

        tf.GradientTape.gradient = gradient
        try:
            yield marked
        finally:
            tf.GradientTape.gradient = original


def _mark(
    step_name: str,
    sources: Any,
    gradients: Any,
    marked: list[MarkedGradient],
    taken: list[tuple[str, tf.Graph]],
) -> Any:
    flat_sources = tf.nest.flatten(sources)
    flat_gradients = tf.nest.flatten(gradients, expand_composites=False)
    results = list(flat_gradients)
    chosen = [i for i, source in enumerate(flat_sources) if _is_trainable_variable(source)]
    for index in chosen:
        _check(step_name, _variable_name(flat_sources[index]), flat_gradients[index])
    for index in backward_order([flat_gradients[i] for i in chosen], chosen):
        name = _unique(_variable_name(flat_sources[index]), taken)
        taken.append((name, tf_ops.get_default_graph()))
        results[index] = _all_reduce(name, tf.convert_to_tensor(flat_gradients[index]), marked)
    return tf.nest.pack_sequence_as(gradients, results)


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


def _all_reduce(name: str, gradient: tf.Tensor, marked: list[MarkedGradient]) -> tf.Tensor:
    if gradient.dtype not in FLOATING:
        allowed = ", ".join(dtype.name for dtype in FLOATING)
        raise ValueError(f"the gradient of {name!r} is {gradient.dtype.name}; allowed: {allowed}")
    shape = tuple(gradient.shape.as_list()) if gradient.shape.rank is not None else (None,)
    elements = gradient.shape.num_elements() or 0
    marked.append(MarkedGradient(name, shape, gradient.dtype.name, elements * gradient.dtype.size))
    (reduced,) = library.load().ops.libra_all_reduce(
        tensors=[gradient], tensor_names=[name], name="LibraAllReduce"
    )
    return reduced


def _unique(name: str, taken: list[tuple[str, tf.Graph]]) -> str:
    graph = tf_ops.get_default_graph()
    others = {other for other, where in taken if not _are_traces_of_one_function(graph, where)}
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
    # Keras 3's variables are no tf.Variable but carry one.
    variable = getattr(source, "value", source)
    return isinstance(variable, tf.Variable) or isinstance(source, tf.Variable)


def _variable_name(variable: Any) -> str:
    # Keras 3's `path` is unique within a model; its `name` is just "kernel".
    return str(getattr(variable, "path", None) or variable.name.split(":")[0])
