"""First uses of weights in graphs made by hand and in traces."""

import numpy as np

from tests.profiling.test_executed_graph import graph
from tests.profiling.test_gradient_timing import WINDOW, events, ms
from tf_libra.profiling.executed_graph import gradient_sources
from tf_libra.profiling.weight_uses import first_uses


def test_users_combine_a_weight_with_data() -> None:
    """Casts and regularizers do not; a node in a loop counts as one of data."""
    example = graph(
        ("x", "_Arg", [], {"index": 0}),
        ("w", "_Arg", [], {"index": 1}),
        ("v", "_Arg", [], {"index": 2}),
        ("read", "ReadVariableOp", ["w"], {}),
        ("half", "Cast", ["read"], {}),
        ("rate", "Const", [], {}),
        ("loss_w", "Mul", ["read", "rate"], {}),
        ("losses", "AddN", ["loss_w", "v"], {}),
        ("layer", "MatMul", ["x", "half"], {}),
        ("enter", "Enter", ["v"], {}),
        ("merge", "Merge", ["layer", "next"], {}),
        ("cell", "MatMul", ["merge", "enter"], {}),
        ("next", "NextIteration", ["cell"], {}),
        ("total", "Add", ["losses", "cell"], {}),
        ("reduce", "LibraAllReduce", ["total"], {"tensor_names": ["w"]}),
    )
    users = gradient_sources([example], {"w": 1, "v": 2, "unused": 7}).users
    assert users == {"w": ("layer", "total"), "v": ("cell", "total")}
    assert gradient_sources([example]).users == {}


def test_first_use_is_the_start_of_a_node_or_the_end_of_its_ancestors() -> None:
    trace = events(("x", 0, 1), ("use", 5, 6), ("use", 7, 8), ("late", 20, 30), ("z", 2, 3))
    inputs = {"cheap": ("identity", "z"), "identity": ("x",), "alone": ()}
    users = {"a": ("late", "use"), "b": ("cheap", "late"), "c": ("alone",)}
    found = first_uses(trace, users, WINDOW, inputs)
    assert {name: ms(np.array(ns)) for name, ns in found.items()} == {"a": 5, "b": 3}
