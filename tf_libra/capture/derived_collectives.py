"""Tensors made of gradients, or of weights, that Horovod's collectives train with.

A script may reduce something else than gradients one by one: one vector of all of them, what a
compression has left of each, parts of them, or the weights after steps of its own. What the
collective returns is followed to the weights; what comes there averaged by us all the same, as a
gradient through batch statistics does, is not meant.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tf_libra.capture.dataflow.forward import follow_labels, variable_inputs
from tf_libra.capture.dataflow.traced_graph import Node, TracedGraph
from tf_libra.capture.gradient_provenance import GradientOrigin, origins
from tf_libra.capture.gradient_registry import GradientRegistry
from tf_libra.capture.variable_resolution import read_by, weights_of

_COLLECTIVE = re.compile(r"Horovod((Grouped)?(Allreduce|Allgather|Reducescatter)|Alltoall)$")


@dataclass(frozen=True)
class DerivedCollective:
    """A collective of Horovod's whose results reach weights.

    Attributes:
        op: the collective.
        tensors: what it is given, without single numbers: these are figures and settings.
        origins: the gradients that those were made of.
        of_examples: variables whose gradients per example those were made of.
        weights: where they were made of nothing but variables, the trainable ones of these.
    """

    op: Any
    tensors: tuple[Any, ...]
    origins: tuple[GradientOrigin, ...]
    of_examples: tuple[str, ...]
    weights: tuple[Any, ...]


def remade(
    graph: Any,
    trace: TracedGraph,
    marks: GradientRegistry,
    is_known: Callable[[Any], bool],
) -> list[DerivedCollective]:
    """The collectives of a trace that train with what was made of gradients, or of weights.

    Args:
        graph: what was traced.
        trace: the same as plain values.
        marks: of the trace.
        is_known: whether a tensor is recognised as a gradient.
    """
    found = []
    for op in graph.get_operations():
        if not _COLLECTIVE.match(op.type):
            continue
        tensors = tuple(one for one in op.inputs if one.shape.rank != 0)
        if tensors and not any(map(is_known, tensors)):
            of = [origin for one in tensors for origin in origins(marks, one)]
            weights = [one for tensor in tensors for one in read_by(tensor) if one.trainable]
            gradients = tuple(one for one in of if not one.call.is_jacobian)
            of_examples = tuple(one.name for one in of if one.call.is_jacobian)
            found.append(
                DerivedCollective(op, tensors, gradients, of_examples, () if of else tuple(weights))
            )
    names = {one.op.name for one in found}
    there = reaching_weights(graph, trace, names, marks, lambda node: node.op == "LibraAllReduce")
    return [one for one in found if one.op.name in there]


def reaching_weights(
    graph: Any,
    trace: TracedGraph,
    names: Collection[str],
    marks: GradientRegistry,
    ends_at: Callable[[Node], bool],
) -> set[str]:
    """Returns those nodes of these names whose outputs reach weights.

    Args:
        graph: what was traced.
        trace: the same as plain values.
        names: of nodes.
        marks: of the trace.
        ends_at: of a node: whether nothing is followed through it.
    """
    if not names:
        return set()
    weights = weights_of(graph, marks)
    there = follow_labels(
        trace,
        variable_inputs(graph, weights),
        label=lambda node: node.name if node.name in names else None,
        ends_at=ends_at,
    )
    return {label for one in weights for label in there.written.get(id(one), ())}


def is_collective(node: Node) -> bool:
    """Returns whether a node is one of the collectives, ours or Horovod's."""
    return node.op == "LibraAllReduce" or bool(_COLLECTIVE.match(node.op))
