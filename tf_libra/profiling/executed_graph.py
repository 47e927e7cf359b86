"""Executed graphs: capture from TensorFlow, and the nodes that produce the gradients.

Names in a trace are those of the executed graph, which differ from the traced function's: inlining
adds prefixes, Grappler fuses and renames, and oneDNN's rewrite removes more nodes after Grappler (a
convolution's BiasAddGrad becomes the second output of its Conv2DBackpropFilter).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import tensorflow as tf

from tf_libra.internal import tf_internal
from tf_libra.profiling.weight_uses import weight_users

# A blocking all-reduce, or the start of an asynchronous one.
_OPS = ("LibraAllReduce", "LibraAllReduceStart")
# Attributes that the pass adds to an op of another library to mark its group.
_NAMES, _GROUP, _THREADS = (
    f"_tf_libra_{name}" for name in ("tensor_names", "group", "num_threads")
)


@dataclasses.dataclass(frozen=True)
class PlacedAllReduce:
    """All-reduce of another library in an executed graph, written by the pass.

    Attributes:
      node: name of its node.
      group: index of its group in the plan.
      num_threads: threads in the plan.
      tensor_names: names of the gradients, in order.
    """

    node: str
    group: int
    num_threads: int
    tensor_names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class GradientSources:
    """Nodes that produce the gradients, and the data inputs of all nodes around them.

    Attributes:
      producers: names of the nodes that may produce each tensor, in the order of the all-reduces in
        the
        graph: one, or one per branch of a conditional.
      inputs: names of the data inputs of each node.
      users: names of the nodes that combine each tensor's weight with data, for known weights.
    """

    producers: Mapping[str, tuple[str, ...]]
    inputs: Mapping[str, tuple[str, ...]]
    users: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


class GraphCapture:
    """Capture of the executed graphs of functions that are instantiated inside the `with` block.

    A function is instantiated by its first call, and by its first call under another config (so
    under another plan); later calls leave no graph. The capture is unavailable while the user
    collects graphs (`tf.summary.trace_on`).

    Attributes:
      graphs: partitions of every captured function, after the block.
      unavailable: reason for an unavailable capture, else empty.
    """

    def __init__(self) -> None:
        self.graphs: tuple[tf.compat.v1.GraphDef, ...] = ()
        self.unavailable = ""

    def __enter__(self) -> Self:
        if tf_internal.is_collecting_graphs():
            self.unavailable = "busy: tf.summary.trace_on is collecting graphs"
        else:
            tf_internal.eager_context().enable_graph_collection()
            # `tf.summary.trace_off` does not stop the collection: discard earlier graphs.
            _export()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.unavailable:
            return
        metadata = _export()
        tf_internal.eager_context().disable_graph_collection()
        self.graphs = tuple(
            graph for function in metadata.function_graphs for graph in function.partition_graphs
        )


def _export() -> Any:
    """Returns the metadata collected so far, also of a call that has failed, and discards it.

    TensorFlow takes a function's graphs over when a kernel has run, whichever it is: those of a
    call that fails would come with the next one's.
    """
    with tf.device("/cpu:0"):
        tf.raw_ops.NoOp()
    return tf_internal.eager_context().export_run_metadata()


def placed_all_reduces(graphs: Iterable[Any]) -> tuple[PlacedAllReduce, ...]:
    """Returns the all-reduces that the pass assigned to another library."""
    return tuple(
        PlacedAllReduce(node.name, node.attr[_GROUP].i, node.attr[_THREADS].i, _tensor_names(node))
        for graph in graphs
        for node in graph.node
        if _NAMES in node.attr
    )


def _tensor_names(node: Any) -> tuple[str, ...]:
    """Returns the gradients that a node all-reduces; empty for other nodes."""
    attribute = "tensor_names" if node.op in _OPS else _NAMES
    if attribute not in node.attr:
        return ()
    return tuple(name.decode() for name in node.attr[attribute].list.s)


def gradient_sources(
    graphs: Iterable[Any], weights: Mapping[str, int] | None = None
) -> GradientSources:
    """Finds the producers of the gradients, which feed the all-reduces.

    Args:
      graphs: executed graphs (GraphDef) of one step.
      weights: argument of the graphs that holds each gradient's weight; None if unknown.

    Raises:
      ValueError: no graph holds an all-reduce.
    """
    producers: dict[str, tuple[str, ...]] = {}
    inputs: dict[str, tuple[str, ...]] = {}
    users: dict[str, tuple[str, ...]] = {}
    for graph in graphs:
        if not any(_tensor_names(node) for node in graph.node):
            continue
        users |= weight_users(graph, weights or {})
        for node in graph.node:
            sources = tuple(name.partition(":")[0] for name in node.input if name[0] != "^")
            inputs[node.name] = sources
            starts = node.attr["part_starts"].list.i if "part_starts" in node.attr else ()
            for index, tensor in enumerate(_tensor_names(node)[: len(sources)]):
                # A split tensor is reduced in several parts and produced once.
                if index >= len(starts) or starts[index] <= 0:
                    producers[tensor] = (*producers.get(tensor, ()), sources[index])
    if not producers:
        raise ValueError("graphs must hold an all-reduce of gradients, got none")
    return GradientSources(producers, inputs, users)
