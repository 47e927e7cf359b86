"""The order in which gradients are produced, and gradient names that are equal in all traces."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow.ancestors import enclosing_graphs
from tf_libra.internal import tf_internal

# Name of a branch: scope, branch, and a number that TensorFlow adds.
_BRANCH = re.compile(r"(.*)_(?:true|(false)|branch(\d+))_(\d+)")


def backward_order(gradients: Sequence[Any], labels: Sequence[int]) -> list[int]:
    """Returns the labels in the order in which backward computation can produce the gradients.

    The longest chain of ops to a gradient decides. Among equals, the gradient of the later variable
    comes first, because variables are created in forward order.

    Args:
        gradients: tensors or `IndexedSlices` of the graph that is being traced.
        labels: one per gradient.
    """
    depth: dict[Any, int] = {}
    # A graph lists ops in order of creation, so inputs come before consumers.
    for operation in tf.compat.v1.get_default_graph().get_operations():
        inputs = [depth[x.op] for x in operation.inputs if x.op in depth]
        depth[operation] = 1 + max(inputs, default=0)
    lateness = [
        max(depth.get(tensor.op, 0) for tensor in tf.nest.flatten(gradient, expand_composites=True))
        for gradient in gradients
    ]
    order = sorted(range(len(labels)), key=lambda i: (lateness[i], -i))
    return [labels[i] for i in order]


@dataclass(frozen=True)
class NamedGradient:
    """A gradient with a name that is unique in the step.

    Attributes:
        name: unique name.
        graph: graph that computes the gradient.
        kind: properties that gradients of one name have in common, such as dtype and shape.
    """

    name: str
    graph: tf.Graph
    kind: Hashable


def unique_name(name: str, kind: Hashable, taken: Sequence[NamedGradient]) -> str:
    """Returns `name`, with a number if another gradient of the step has that name.

    Two traces of a nested function, and two branches of a conditional, have the same gradients.
    Only one of them runs, so they share names: a plan has each gradient once.

    Args:
        name: of a variable.
        kind: see `NamedGradient`.
        taken: gradients before it.
    """
    graph = tf.compat.v1.get_default_graph()
    others = {
        other.name
        for other in taken
        if other.name.startswith(name)
        and not (other.kind == kind and _are_alternatives(graph, other.graph))
    }
    candidates = (f"{name}#{i}" if i else name for i in range(len(others) + 1))
    return next(candidate for candidate in candidates if candidate not in others)


def _are_alternatives(first: tf.Graph, second: tf.Graph) -> bool:
    """Returns whether graphs lie in two traces of a nested function, or branches of a conditional.

    TensorFlow traces a function again for other shapes, and if the first trace creates variables;
    a conditional chooses between both traces if the variables must not exist beforehand.
    """
    mine, theirs = ([*enclosing_graphs(graph)][::-1] for graph in (first, second))
    while mine and theirs and mine[0] is theirs[0]:
        del mine[0], theirs[0]
    if not mine or not theirs:
        return False
    conditional = _conditional(mine[0])
    if conditional is not None and conditional == _conditional(theirs[0]):
        return True
    return not _function_names(mine).isdisjoint(_function_names(theirs))


def _conditional(graph: Any) -> tuple[str, int] | None:
    """Identifies the conditional that a graph is a branch of; None for other graphs.

    TensorFlow names and numbers all branches of a conditional together.
    """
    if not isinstance(graph, tf_internal.CondBranchFuncGraph):
        return None
    found = _BRANCH.fullmatch(graph.name)
    if found is None:
        return None
    scope, is_false, index, number = found.groups()
    return scope, int(number) - (int(index) if index else int(bool(is_false)))


def _function_names(graphs: Sequence[Any]) -> set[str]:
    """Returns the names of the `tf.function`s among graphs, without bodies of control flow."""
    functions = (graph for graph in graphs if isinstance(graph, tf_internal.FuncGraph))
    return {
        function.name
        for function in functions
        if not getattr(function, "is_control_flow_graph", False)
    }
