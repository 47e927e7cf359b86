"""A trace as plain values: its nodes, and those of all functions that it calls."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
LOOPS = frozenset({"While", "StatelessWhile"})
# Ops that write to the variable whose handle they are given.
WRITES = re.compile(
    r"Resource(Sparse)?Apply|ResourceScatter|ResourceStridedSliceAssign|Assign(Add|Sub)?VariableOp"
)
_RESOURCE = tf.resource.as_datatype_enum
# A batch's size, or the shape of one.
_MAX_ELEMENTS = 8


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    Attributes:
        name: within its graph or function.
        op: type of op.
        inputs: node or argument, and which of its outputs; without control inputs.
        functions: names of the functions that it calls; of a loop, condition and body.
        tensor_names: what an all-reduce reduces.
        is_resource: whether its first output is a handle.
        constant: of a small constant, what it is; equal ones are equal.
    """

    name: str
    op: str
    inputs: tuple[tuple[str, int], ...]
    functions: tuple[str, ...]
    tensor_names: tuple[str, ...]
    is_resource: bool
    constant: bytes = b""


@dataclass(frozen=True)
class Body:
    """A graph, or a function in it.

    Attributes:
        nodes: in any order.
        arguments: names of its inputs, those that it has captured last.
        resources: for each argument whether it is a handle.
        results: what it returns; empty for the outermost graph.
        result_resources: for each result whether it is a handle.
    """

    nodes: tuple[Node, ...]
    arguments: tuple[str, ...]
    resources: tuple[bool, ...]
    results: tuple[tuple[str, int], ...] = ()
    result_resources: tuple[bool, ...] = ()


@dataclass(frozen=True)
class TracedGraph:
    """A trace.

    Attributes:
        body: of the trace itself.
        functions: that it calls, and those call; by name.
    """

    body: Body
    functions: Mapping[str, Body]


def read(graph: Any) -> TracedGraph:
    """Reads a `FuncGraph`."""
    definition = graph.as_graph_def()
    known = {function.signature.name for function in definition.library.function}
    functions = {}
    for function in definition.library.function:
        signature = function.signature
        functions[signature.name] = Body(
            _nodes(function.node_def, known),
            tuple(one.name for one in signature.input_arg),
            tuple(one.type == _RESOURCE for one in signature.input_arg),
            tuple(_reference(function.ret[one.name]) for one in signature.output_arg),
            tuple(one.type == _RESOURCE for one in signature.output_arg),
        )
    body = Body(
        _nodes(definition.node, known),
        tuple(one.op.name for one in graph.inputs),
        tuple(one.dtype.as_datatype_enum == _RESOURCE for one in graph.inputs),
    )
    return TracedGraph(body, functions)


def _nodes(definitions: Iterable[Any], known: set[str]) -> tuple[Node, ...]:
    return tuple(
        Node(
            one.name,
            one.op,
            tuple(_reference(text) for text in one.input if not text.startswith("^")),
            _called(one, known),
            tuple(name.decode() for name in one.attr["tensor_names"].list.s)
            if one.op == "LibraAllReduce"
            else (),
            one.attr["T"].type == _RESOURCE if "T" in one.attr else False,
            _constant(one),
        )
        for one in definitions
    )


def _constant(node: Any) -> bytes:
    if node.op != "Const":
        return b""
    value = node.attr["value"].tensor
    if math.prod(dimension.size for dimension in value.tensor_shape.dim) > _MAX_ELEMENTS:
        return b""
    return bytes(value.SerializeToString(deterministic=True))


def _called(node: Any, known: set[str]) -> tuple[str, ...]:
    if node.op in LOOPS:
        names = [node.attr["cond"].func.name, node.attr["body"].func.name]
    else:
        names = [f.name for value in node.attr.values() for f in (value.func, *value.list.func)]
    return tuple(name for name in names if name in known)


def _reference(text: str) -> tuple[str, int]:
    """`node`, `node:1` or, in a function, `node:output:1`."""
    name, _, port = text.partition(":")
    return name, int(port.rpartition(":")[2] or 0)
