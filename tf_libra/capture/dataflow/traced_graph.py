"""A traced graph as plain values: its nodes, and those of all functions that it calls."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.internal import tf_internal

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
LOOPS = frozenset({"While", "StatelessWhile"})
# Ops that write to the variable whose handle they read.
WRITES = re.compile(
    r"Resource(Sparse)?Apply|ResourceScatter|ResourceStridedSliceAssign|Assign(Add|Sub)?VariableOp"
)
# Prefix of the attributes that TF-Libra adds to nodes.
ATTRIBUTE_PREFIX = "_tf_libra_"

_RESOURCE = tf.resource.as_datatype_enum
# Enough for the size of a batch, or the shape of one.
_MAX_ELEMENTS = 8


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    Attributes:
        name: within its graph or function.
        op: type of op.
        inputs: node or argument, and index of its output; without control inputs.
        functions: names of the functions that the node calls; condition and body of a loop.
        tensor_names: the gradients that a `LibraAllReduce` reduces.
        is_resource: whether the first output is a handle.
        constant: value of a small constant; equal constants have equal values.
        attributes: values of the attributes that begin with `ATTRIBUTE_PREFIX`.
    """

    name: str
    op: str
    inputs: tuple[tuple[str, int], ...]
    functions: tuple[str, ...]
    tensor_names: tuple[str, ...]
    is_resource: bool
    constant: bytes
    attributes: Mapping[str, str]


@dataclass(frozen=True)
class Body:
    """A graph, or a function in its library.

    Attributes:
        nodes: in any order.
        arguments: names of the inputs; captured inputs come last.
        resources: whether each argument is a handle.
        results: references of the outputs; empty for the outermost graph.
        result_resources: whether each result is a handle.
        is_of_dataset: whether tf.data runs the function, which no graph pass rewrites.
    """

    nodes: tuple[Node, ...]
    arguments: tuple[str, ...]
    resources: tuple[bool, ...]
    results: tuple[tuple[str, int], ...] = ()
    result_resources: tuple[bool, ...] = ()
    is_of_dataset: bool = False


@dataclass(frozen=True)
class TracedGraph:
    """A trace.

    Attributes:
        body: of the trace itself.
        functions: every function of the graph's library, by name.
    """

    body: Body
    functions: Mapping[str, Body]

    def all_nodes(self) -> Iterator[Node]:
        """Yields the nodes of the graph and of every function."""
        yield from self.body.nodes
        for function in self.functions.values():
            yield from function.nodes

    def nodes_within(self, functions: Iterable[str]) -> Iterator[Node]:
        """Yields the nodes of functions, and of all functions that these call."""
        names = [name for name in functions if name in self.functions]
        seen = set(names)
        for name in names:  # grows while it is walked
            for node in self.functions[name].nodes:
                yield node
                names += [inner for inner in node.functions if inner not in seen]
                seen.update(node.functions)


def read(graph: Any) -> TracedGraph:
    """Reads a `FuncGraph`, which may still be traced."""
    definition = graph.as_graph_def()
    known = {function.signature.name for function in definition.library.function}
    functions = {}
    for function in definition.library.function:
        signature = function.signature
        functions[signature.name] = Body(
            _read_nodes(function.node_def, known),
            tuple(argument.name for argument in signature.input_arg),
            tuple(argument.type == _RESOURCE for argument in signature.input_arg),
            tuple(_parse_reference(function.ret[output.name]) for output in signature.output_arg),
            tuple(output.type == _RESOURCE for output in signature.output_arg),
            function.attr["_tf_data_function"].b if "_tf_data_function" in function.attr else False,
        )
    # While a function is traced, its list of inputs may still hold variables that are arguments.
    eager = tf_internal.EagerTensor
    inputs = [tensor for tensor in getattr(graph, "inputs", ()) if not isinstance(tensor, eager)]
    body = Body(
        _read_nodes(definition.node, known),
        tuple(tensor.op.name for tensor in inputs),
        tuple(tensor.dtype == tf.resource for tensor in inputs),
    )
    return TracedGraph(body, functions)


def called_functions(node: Any, known: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of the functions that a `NodeDef` calls, of those in `known`."""
    if node.op in LOOPS:
        names = [node.attr["cond"].func.name, node.attr["body"].func.name]
    else:
        names = [f.name for value in node.attr.values() for f in (value.func, *value.list.func)]
    return tuple(name for name in names if name in known)


def _read_nodes(definitions: Iterable[Any], known: set[str]) -> tuple[Node, ...]:
    return tuple(
        Node(
            node.name,
            node.op,
            tuple(_parse_reference(text) for text in node.input if not text.startswith("^")),
            called_functions(node, known),
            tuple(name.decode() for name in node.attr["tensor_names"].list.s)
            if node.op == "LibraAllReduce"
            else (),
            node.attr["T"].type == _RESOURCE if "T" in node.attr else False,
            _constant(node),
            {
                name: node.attr[name].s.decode()
                for name in node.attr
                if name.startswith(ATTRIBUTE_PREFIX)
            },
        )
        for node in definitions
    )


def _constant(node: Any) -> bytes:
    if node.op != "Const":
        return b""
    value = node.attr["value"].tensor
    if math.prod(dimension.size for dimension in value.tensor_shape.dim) > _MAX_ELEMENTS:
        return b""
    return bytes(value.SerializeToString(deterministic=True))


def _parse_reference(text: str) -> tuple[str, int]:
    """Splits `node`, `node:1` or, in a function, `node:output:1`."""
    name, _, port = text.partition(":")
    return name, int(port.rpartition(":")[2] or 0)
