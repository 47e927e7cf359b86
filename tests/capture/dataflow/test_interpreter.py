"""The core of the forward walks, on graphs written by hand and on a traced one."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.dataflow.interpreter import Frame, Interpreter, Value, members, union
from tf_libra.capture.dataflow.traced_graph import Body, Node

LABELS = {"A": 1, "B": 2, "C": 4}


class Reads(Interpreter):
    """Adds the label of an op named A, B or C; Write and Read access variable 0."""

    def evaluate(self, node: Node, frame: Frame) -> Value:
        inputs = frame.inputs(node)
        value = self.control_flow(node, inputs, frame.condition)
        if value is not None:
            return value
        if node.op == "Write":
            self.write(0, union(inputs) | frame.condition)
        if node.op == "Read":
            return self.writes.get(0, 0)
        return union(inputs) | LABELS.get(node.op, 0)


def node(name: str, op: str, *inputs: str, functions: Sequence[str] = ()) -> Node:
    references = tuple(
        (input_.partition(":")[0], int(input_.partition(":")[2] or 0)) for input_ in inputs
    )
    return Node(name, op, references, tuple(functions), (), False, b"", {})


def body(*nodes: Node, arguments: Sequence[str] = (), results: Sequence[str] = ()) -> Body:
    return Body(
        nodes,
        tuple(arguments),
        (False,) * len(arguments),
        tuple((result, 0) for result in results),
        (False,) * len(results),
    )


def values(outer: Body, **functions: Body) -> dict[str, Value]:
    return Reads(functions).run(outer, {}).values


def test_results_of_a_call_keep_their_own_labels() -> None:
    inner = body(node("c", "C", "y"), arguments=["x", "y"], results=["x", "c"])
    found = values(
        body(
            node("a", "A"),
            node("b", "B"),
            node("call", "PartitionedCall", "a", "b", functions=["inner"]),
            node("first", "Identity", "call:0"),
            node("second", "Identity", "call:1"),
        ),
        inner=inner,
    )
    assert (found["first"], found["second"]) == (1, 2 | 4)


def test_conditional_adds_its_predicate_to_results_and_to_writes() -> None:
    branch = body(node("w", "Write", "x"), arguments=["x"], results=["x"])
    walk = Reads({"branch": branch})
    found = walk.run(
        body(node("a", "A"), node("b", "B"), node("if", "If", "a", "b", functions=["branch"] * 2)),
        {},
    ).values
    assert found["if"] == (1 | 2,)
    assert walk.writes == {0: 1 | 2}


def test_loop_is_evaluated_until_its_state_is_stable() -> None:
    test = body(node("t", "Identity", "z"), arguments=["x", "y", "z"], results=["t"])
    turn = body(arguments=["x", "y", "z"], results=["y", "z", "z"])
    found = values(
        body(
            node("a", "A"),
            node("b", "B"),
            node("c", "C"),
            node("loop", "While", "a", "b", "c", functions=["test", "turn"]),
        ),
        test=test,
        turn=turn,
    )
    assert found["loop"] == (1 | 2 | 4, 2 | 4, 4)


def test_value_written_below_is_read_above_in_the_next_step() -> None:
    found = values(body(node("read", "Read"), node("a", "A"), node("write", "Write", "a")))
    assert found["read"] == 1


def test_nodes_in_any_order_are_evaluated_until_they_are_stable() -> None:
    found = values(body(node("last", "Identity", "mid"), node("mid", "B", "a"), node("a", "A")))
    assert found == {"a": 1, "mid": 1 | 2, "last": 1 | 2}


def test_function_that_calls_itself_ends() -> None:
    inner = body(
        node("again", "PartitionedCall", "x", functions=["inner"]),
        node("b", "B", "again"),
        arguments=["x"],
        results=["b"],
    )
    found = values(
        body(node("a", "A"), node("call", "PartitionedCall", "a", functions=["inner"])), inner=inner
    )
    assert found["call"] == (2,)


def test_arguments_of_an_opaque_op_are_its_last_inputs() -> None:
    inner = Body((), ("element", "number", "handle"), (False, False, True))
    walk = Reads({"inner": inner})
    assert walk.opaque_arguments("inner", [1, 2, 4], others=8) == [8, 8, 4]
    assert walk.opaque_arguments("inner", [4], others=8) == [8, 8, 4]


def test_members_are_the_numbers_of_the_bits() -> None:
    assert list(members(0)) == []
    assert list(members(0b101001)) == [0, 3, 5]


def test_traced_branches_and_functions_are_followed() -> None:
    class Tanh(Interpreter):
        def evaluate(self, node: Node, frame: Frame) -> Value:
            inputs = frame.inputs(node)
            value = self.control_flow(node, inputs, frame.condition)
            return union(inputs) | (node.op == "Tanh") if value is None else value

    @tf.function
    def step(x: Any) -> Any:
        inner = tf.function(lambda y: (tf.tanh(y), y))
        first, second = inner(x)
        return tf.cond(x > 0, lambda: first, lambda: x), second

    graph = step.get_concrete_function(tf.constant(1.0)).graph
    trace = traced_graph.read(graph)
    frame = Tanh(trace.functions).run(trace.body, dict.fromkeys(trace.body.arguments, 0))
    assert [frame.at((output.op.name, output.value_index)) for output in graph.outputs] == [1, 0]
