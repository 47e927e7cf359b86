"""First uses of weights in the forward pass, before which gathered weights have to be there."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tf_libra.profiling.events import Events
from tf_libra.profiling.gradient_timing import nearest_traced

_CONSTANT: frozenset[int] = frozenset()


def weight_users(graph: Any, weights: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Finds the nodes that combine a weight with data, by gradient.

    Nodes that depend on weights and constants alone, such as casts and regularizers, may run as
    soon as the weights are there, and layers do not wait for them.

    Args:
      graph: executed graph (GraphDef) of one step.
      weights: argument of the graph that holds each gradient's weight.
    """
    inputs = {node.name: tuple(_data_inputs(node)) for node in graph.node}
    sources = _weight_sources(graph, inputs, frozenset(weights.values()))
    users: dict[int, list[str]] = {}
    for name, found in sources.items():
        if found is None:
            used = {index for each in inputs[name] for index in sources.get(each) or ()}
            for index in used:
                users.setdefault(index, []).append(name)
    return {name: tuple(users[index]) for name, index in weights.items() if index in users}


def _data_inputs(node: Any) -> Iterable[str]:
    return (name.partition(":")[0] for name in node.input if name[0] != "^")


def _weight_sources(
    graph: Any, inputs: Mapping[str, Sequence[str]], weights: frozenset[int]
) -> dict[str, frozenset[int] | None]:
    """Returns the weights that each node alone depends on; None for nodes that depend on data."""
    sources: dict[str, frozenset[int] | None] = dict.fromkeys(inputs)
    waiting = {name: len(set(before)) for name, before in inputs.items()}
    after: dict[str, list[str]] = {}
    for name, before in inputs.items():
        for each in set(before):
            after.setdefault(each, []).append(name)
    ready = []
    for node in graph.node:
        index = node.attr["index"].i if node.op == "_Arg" else None
        if index in weights:
            sources[node.name] = frozenset({index})
            ready.append(node.name)
        elif node.op == "Const":
            sources[node.name] = _CONSTANT
            ready.append(node.name)
    while ready:  # nodes in loops are never ready
        for name in after.get(ready.pop(), ()):
            waiting[name] -= 1
            if waiting[name] == 0:
                sources[name] = _CONSTANT.union(*(sources[each] or () for each in inputs[name]))
                ready.append(name)
    return sources


def first_uses(
    events: Events,
    users: Mapping[str, Sequence[str]],
    window: tuple[int, int],
    inputs: Mapping[str, Sequence[str]],
) -> dict[str, int]:
    """Returns when each weight was first used, in nanoseconds, by gradient.

    A node without an event counts as run when the last of its nearest traced ancestors ended. A
    gradient without a known use is left out.

    Args:
      events: op events of one step.
      users: nodes that use the weight of each gradient.
      window: (start_ns, stop_ns) of the step.
      inputs: names of the data inputs of each node.
    """
    starts, ends, _ = events.runs_within(window)
    found = {}
    for gradient, nodes in users.items():
        times = [starts[node] for node in nodes if node in starts]
        for node in nodes:
            ancestors = () if node in starts else nearest_traced(node, inputs, ends)
            times += [max(ends[name] for name in ancestors)] if ancestors else []
        if times:
            found[gradient] = min(times)
    return found
