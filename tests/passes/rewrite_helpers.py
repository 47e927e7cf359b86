"""Orders and delays in hand-made graphs."""

from tests.passes.graphs import (
    GraphBuilder,
    Group,
    controls,
    fuse,
    nodes,
    register,
)


def chain(graph) -> list[str]:
    """The all-reduces in the order in which control edges put them."""
    by_name = nodes(graph)
    before = {
        name: [other for other in controls(node) if by_name[other].op == "LibraAllReduce"]
        for name, node in by_name.items()
        if node.op == "LibraAllReduce"
    }
    order: list[str] = []
    while len(order) < len(before):
        (following,) = (n for n in before if n not in order and set(before[n]) <= {*order})
        assert not order or order[-1] in before[following]
        order.append(following)
    return order


def fuse_nothing(builder: GraphBuilder):
    """Returns Grappler's result for the graph under a plan that has nothing to do with it."""
    return fuse(builder.graph, register([Group(["of another model"])]))
