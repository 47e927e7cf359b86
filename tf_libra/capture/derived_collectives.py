"""Collectives of Horovod that train with tensors made of gradients or of weights.

A script may reduce other tensors than single gradients: one vector of all gradients, compressed or
partial gradients, or the weights after rank-local updates. The result of such a collective is
followed to the weights. A result that arrives only through our averages, as a gradient through
batch statistics does, does not count.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tf_libra.capture.dataflow.forward import follow_labels, variable_inputs
from tf_libra.capture.dataflow.traced_graph import Node, TracedGraph
from tf_libra.capture.gradient_provenance import GradientOrigin, origins
from tf_libra.capture.gradient_registry import GradientRegistry
from tf_libra.capture.variable_resolution import replicated_weights, variables_read_by

_COLLECTIVE = re.compile(r"Horovod((Grouped)?(Allreduce|Allgather|Reducescatter)|Alltoall)$")


@dataclass(frozen=True)
class DerivedCollective:
    """A collective of Horovod's whose results reach weights.

    Attributes:
        op: the collective.
        tensors: its inputs, without scalars, which are metrics and settings.
        origins: the gradients that the inputs were made of.
        per_example: variables whose per-example gradients the inputs were made of.
        weights: the trainable variables among the inputs' variables, if they were made of
            variables alone.
    """

    op: Any
    tensors: tuple[Any, ...]
    origins: tuple[GradientOrigin, ...]
    per_example: tuple[str, ...]
    weights: tuple[Any, ...]


def find_derived_collectives(
    graph: Any,
    trace: TracedGraph,
    registry: GradientRegistry,
    is_known: Callable[[Any], bool],
) -> list[DerivedCollective]:
    """Returns the collectives that train with tensors made of gradients or of weights.

    Args:
        graph: the traced graph.
        trace: the same graph as plain values.
        registry: of the trace.
        is_known: returns whether a tensor is recognized as a gradient.
    """
    candidates = []
    for op in graph.get_operations():
        if not _COLLECTIVE.match(op.type):
            continue
        tensors = tuple(tensor for tensor in op.inputs if tensor.shape.rank != 0)
        if tensors and not any(map(is_known, tensors)):
            made_of = [origin for tensor in tensors for origin in origins(registry, tensor)]
            variables = [variable for tensor in tensors for variable in variables_read_by(tensor)]
            weights = (
                () if made_of else tuple(variable for variable in variables if variable.trainable)
            )
            gradients = tuple(source for source in made_of if not source.call.is_jacobian)
            per_example = tuple(source.name for source in made_of if source.call.is_jacobian)
            candidates.append(DerivedCollective(op, tensors, gradients, per_example, weights))
    reaching = find_reaching_weights(
        graph,
        trace,
        {candidate.op.name for candidate in candidates},
        registry,
        ends_at=lambda node: node.op == "LibraAllReduce",
    )
    return [candidate for candidate in candidates if candidate.op.name in reaching]


def find_reaching_weights(
    graph: Any,
    trace: TracedGraph,
    names: Collection[str],
    registry: GradientRegistry,
    ends_at: Callable[[Node], bool],
) -> set[str]:
    """Returns the nodes whose outputs reach weights.

    Args:
        graph: the traced graph.
        trace: the same graph as plain values.
        names: of the nodes to follow.
        registry: of the trace.
        ends_at: returns whether nothing is followed through a node.
    """
    if not names:
        return set()
    weights = replicated_weights(graph, registry)
    found = follow_labels(
        trace,
        variable_inputs(graph, weights),
        label=lambda node: node.name if node.name in names else None,
        ends_at=ends_at,
    )
    return {label for weight in weights for label in found.written.get(id(weight), ())}


def is_collective(node: Node) -> bool:
    """Returns whether a node is a collective, ours or Horovod's."""
    return node.op == "LibraAllReduce" or bool(_COLLECTIVE.match(node.op))
