"""A traced graph as plain values: its nodes, and those of all functions that it calls."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
        sizes: number of elements of each output, -1 if unknown; empty if read without sizes.
        rank: number of dimensions of the first output, -1 if unknown.
        keeps_dims: whether a reduction keeps the dimensions that it reduces.
        dtypes: dtype of each output; empty if read without sizes.
    """

    name: str
    op: str
    inputs: tuple[tuple[str, int], ...]
    functions: tuple[str, ...]
    tensor_names: tuple[str, ...]
    is_resource: bool
    constant: bytes
    attributes: Mapping[str, str]
    sizes: tuple[int, ...] = ()
    rank: int = -1
    keeps_dims: bool = False
    dtypes: tuple[tf.DType, ...] = ()


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
        argument_sizes: number of elements of each argument, as in `Node.sizes`.
    """

    nodes: tuple[Node, ...]
    arguments: tuple[str, ...]
    resources: tuple[bool, ...]
    results: tuple[tuple[str, int], ...] = ()
    result_resources: tuple[bool, ...] = ()
    is_of_dataset: bool = False
    argument_sizes: tuple[int, ...] = ()


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


def read(graph: Any, with_sizes: bool = False) -> TracedGraph:
    """Reads a `FuncGraph`, which may still be traced.

    Args:
        graph: the `FuncGraph`.
        with_sizes: whether to read the sizes of tensors, too, which takes longer.
    """
    definition = graph.as_graph_def(add_shapes=with_sizes)
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
        argument_sizes=tuple(_num_elements(tensor.shape.as_proto()) for tensor in inputs)
        if with_sizes
        else (),
    )
    return TracedGraph(body, _with_argument_sizes(body, functions) if with_sizes else functions)


def sizes_in(body: Body) -> dict[str, tuple[int, ...]]:
    """Returns the sizes of a body's nodes and arguments, by name."""
    sizes = {node.name: node.sizes for node in body.nodes}
    pairs = zip(body.arguments, body.argument_sizes, strict=True)
    return sizes | {name: (size,) for name, size in pairs}


def size_of(reference: tuple[str, int], sizes: Mapping[str, tuple[int, ...]]) -> int:
    """Returns the size of an output, -1 if unknown."""
    name, index = reference
    found = sizes.get(name, ())
    return found[index] if index < len(found) else -1


def _with_argument_sizes(body: Body, functions: Mapping[str, Body]) -> dict[str, Body]:
    """Returns the functions with those sizes of arguments that are the same in all calls."""
    sized: dict[str, Body] = {}
    waiting = [body]
    for caller in waiting:  # grows while it is walked
        sizes = sizes_in(caller)
        for node in caller.nodes:
            input_sizes = [size_of(reference, sizes) for reference in node.inputs]
            if node.op in BRANCHES:
                input_sizes = input_sizes[1:]
            elif node.op in LOOPS:  # a size that changes in the loop is unknown
                results = zip(input_sizes, node.sizes, strict=False)
                input_sizes = [size if size == result else -1 for size, result in results]
            for name in node.functions:
                count = len(functions[name].arguments)
                if len(input_sizes) != count or node.op not in CALLS | BRANCHES | LOOPS:
                    input_sizes = [-1] * count
                known = sized[name].argument_sizes if name in sized else tuple(input_sizes)
                pairs = zip(known, input_sizes, strict=True)
                joined = tuple(old if old == new else -1 for old, new in pairs)
                if name not in sized or joined != known:
                    sized[name] = replace(functions[name], argument_sizes=joined)
                    waiting.append(sized[name])
    uncalled = {
        name: replace(function, argument_sizes=(-1,) * len(function.arguments))
        for name, function in functions.items()
        if name not in sized
    }
    return sized | uncalled


def handle_inputs(op: str, num_inputs: int) -> tuple[int, ...]:
    """Returns which data inputs of an op are handles of variables; the first, if it is unknown."""
    definition = tf_internal.find_op_definition(op)
    if definition is None or len(definition.input_arg) != num_inputs:
        return tuple(range(min(num_inputs, 1)))
    return tuple(i for i, argument in enumerate(definition.input_arg) if argument.type == _RESOURCE)


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
            _read_sizes(node.attr),
            _read_rank(node.attr),
            node.attr["keep_dims"].b if "keep_dims" in node.attr else False,
            _read_dtypes(node) if "_output_shapes" in node.attr else (),
        )
        for node in definitions
    )


def _read_sizes(attributes: Any) -> tuple[int, ...]:
    if "_output_shapes" not in attributes:
        return ()
    return tuple(_num_elements(shape) for shape in attributes["_output_shapes"].list.shape)


def _read_dtypes(node: Any) -> tuple[tf.DType, ...]:
    definition = tf_internal.find_op_definition(node.op)
    types: list[int] = []
    for output in () if definition is None else definition.output_arg:
        if output.type_list_attr:
            types += node.attr[output.type_list_attr].list.type
        else:
            count = node.attr[output.number_attr].i if output.number_attr else 1
            types += [output.type or node.attr[output.type_attr].type] * count
    return tuple(map(tf.as_dtype, types))


def _read_rank(attributes: Any) -> int:
    shapes = attributes["_output_shapes"].list.shape if "_output_shapes" in attributes else ()
    return len(shapes[0].dim) if shapes and not shapes[0].unknown_rank else -1


def _num_elements(shape: Any) -> int:
    """Returns the number of elements of a `TensorShapeProto`; -1 if unknown."""
    sizes = [dimension.size for dimension in shape.dim]
    return -1 if shape.unknown_rank or -1 in sizes else math.prod(sizes)


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
