"""The graphs that TensorFlow executes, and what in them produces the gradients.

Names in a trace are those of the executed graph, which is not the traced function's: inlining
adds prefixes, Grappler fuses and renames, and oneDNN's rewrite, after Grappler, drops further
nodes (a convolution's BiasAddGrad becomes the second output of its Conv2DBackpropFilter).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import tensorflow as tf

from tf_libra.internal import tf_internal

# Whole, or started apart from the wait for its end.
_OPS = ("LibraAllReduce", "LibraAllReduceStart")
# Attributes that the pass adds to an op of another library, which knows no plan, to read it by.
_NAMES, _GROUP, _THREADS = (
    f"_tf_libra_{name}" for name in ("tensor_names", "group", "num_threads")
)


@dataclasses.dataclass(frozen=True)
class PlacedAllReduce:
    """An all-reduce of another library in an executed graph, written by the pass.

    Attributes:
      node: its name.
      group: index in the plan.
      num_threads: what the plan wants.
      tensor_names: the gradients, in order.
    """

    node: str
    group: int
    num_threads: int
    tensor_names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class GradientSources:
    """The node that produces each gradient, and the data inputs of every node around it.

    Attributes:
      producers: tensor name to the names of the nodes that may produce it, in the order of the
        all-reduces in the graph: one, or one in each branch of a choice.
      inputs: node name to the names of its data inputs.
    """

    producers: Mapping[str, tuple[str, ...]]
    inputs: Mapping[str, tuple[str, ...]]


class GraphCapture:
    """Captures the executed graphs of the functions instantiated inside the `with` block.

    A function is instantiated by its first call, and by its first call under another config (and
    so under another plan); later calls leave no graph. Where the user has switched on graph
    collection (`tf.summary.trace_on`), this capture stands back: `unavailable` says so.

    Attributes:
      graphs: the partitions of every captured function, once the block has ended.
      unavailable: why nothing could be captured, else empty.
    """

    def __init__(self) -> None:
        self.graphs: tuple[tf.compat.v1.GraphDef, ...] = ()
        self.unavailable = ""

    def __enter__(self) -> Self:
        if tf_internal.is_collecting_graphs():
            self.unavailable = "busy: tf.summary.trace_on is collecting graphs"
        else:
            tf_internal.eager_context().enable_graph_collection()
            # `tf.summary.trace_off` leaves TensorFlow collecting: what came before is not ours.
            tf_internal.eager_context().export_run_metadata()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.unavailable:
            return
        metadata = tf_internal.eager_context().export_run_metadata()
        tf_internal.eager_context().disable_graph_collection()
        self.graphs = tuple(
            graph for function in metadata.function_graphs for graph in function.partition_graphs
        )


def placed_all_reduces(graphs: Iterable[Any]) -> tuple[PlacedAllReduce, ...]:
    """The all-reduces that the pass has given to another library."""
    return tuple(
        PlacedAllReduce(node.name, node.attr[_GROUP].i, node.attr[_THREADS].i, _tensor_names(node))
        for graph in graphs
        for node in graph.node
        if _NAMES in node.attr
    )


def _tensor_names(node: Any) -> tuple[str, ...]:
    """The gradients that a node all-reduces; none for a node that does something else."""
    attribute = "tensor_names" if node.op in _OPS else _NAMES
    if attribute not in node.attr:
        return ()
    return tuple(name.decode() for name in node.attr[attribute].list.s)


def gradient_sources(graphs: Iterable[Any]) -> GradientSources:
    """Finds the producers of the gradients: what feeds the all-reduces.

    Args:
      graphs: executed graphs (GraphDef), one step's worth.

    Raises:
      ValueError: if no graph holds such an op.
    """
    producers: dict[str, tuple[str, ...]] = {}
    inputs: dict[str, tuple[str, ...]] = {}
    for graph in graphs:
        if not any(_tensor_names(node) for node in graph.node):
            continue
        for node in graph.node:
            sources = tuple(name.partition(":")[0] for name in node.input if name[0] != "^")
            inputs[node.name] = sources
            starts = node.attr["part_starts"].list.i if "part_starts" in node.attr else ()
            for index, tensor in enumerate(_tensor_names(node)[: len(sources)]):
                # A tensor in parts is reduced several times, and produced once.
                if index >= len(starts) or starts[index] <= 0:
                    producers[tensor] = (*producers.get(tensor, ()), sources[index])
    if not producers:
        raise ValueError("graphs: none holds an all-reduce of gradients")
    return GradientSources(producers, inputs)
