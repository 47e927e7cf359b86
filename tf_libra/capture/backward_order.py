"""In which order gradients are produced, and names for them that every trace gives alike."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow.ancestors import enclosing_graphs
from tf_libra.internal import tf_internal

# A branch's name: that of its scope, which branch it is, a number of its own.
_BRANCH = re.compile(r"(.*)_(?:true|(false)|branch(\d+))_(\d+)")


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
    """A gradient that has its name.

    Attributes:
        name: within the step.
        graph: that computes it.
        kind: what gradients of one name have in common, such as dtype and shape.
    """

    name: str
    graph: tf.Graph
    kind: Hashable


def unique_name(name: str, kind: Hashable, taken: Sequence[NamedGradient]) -> str:
    """`name`, with a number where the step has another gradient of that name.

    Traces of one nested function have the same gradients, and so have branches of which one alone
    runs: they share names, and a plan is about each gradient once.

    Args:
        name: of a variable.
        kind: see `NamedGradient`.
        taken: gradients before it.
    """
    graph = tf.compat.v1.get_default_graph()
    others = {
        one.name
        for one in taken
        if one.name.startswith(name) and not (one.kind == kind and _stand_in(graph, one.graph))
    }
    candidates = (f"{name}#{i}" if i else name for i in range(len(others) + 1))
    return next(candidate for candidate in candidates if candidate not in others)


def _stand_in(one: tf.Graph, other: tf.Graph) -> bool:
    """Returns whether these are in two traces of a nested function, or branches of one choice.

    TensorFlow traces a function twice if the first trace makes variables, with a choice between the
    two where it must not make them beforehand, and again for other shapes.
    """
    mine, theirs = ([*enclosing_graphs(graph)][::-1] for graph in (one, other))
    while mine and theirs and mine[0] is theirs[0]:
        del mine[0], theirs[0]
    if not mine or not theirs:
        return False
    choice = _choice(mine[0])
    if choice is not None and choice == _choice(theirs[0]):
        return True
    return not _functions(mine).isdisjoint(_functions(theirs))


def _choice(graph: Any) -> tuple[str, int] | None:
    """Names the choice that a graph is a branch of; None for other graphs.

    TensorFlow gives all branches of a choice their names, and numbers, at the same time.
    """
    found = (
        _BRANCH.fullmatch(graph.name)
        if isinstance(graph, tf_internal.CondBranchFuncGraph)
        else None
    )
    if found is None:
        return None
    scope, is_false, index, number = found.groups()
    return scope, int(number) - (int(index) if index else int(bool(is_false)))


def _functions(graphs: Sequence[Any]) -> set[str]:
    """Names of the `tf.function`s among graphs, without what control flow is made of."""
    functions = (one for one in graphs if isinstance(one, tf_internal.FuncGraph))
    return {one.name for one in functions if not getattr(one, "is_control_flow_graph", False)}
