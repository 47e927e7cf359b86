"""Subgraphs of a trace, and functions that run them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.partition.guarded_calls import active_guard
from tf_libra.model_parallel.partition.replicated_random import (
    ReplicatedRandomOp,
    add_constant,
    slice_global_random,
)


@dataclass(frozen=True)
class Subgraph:
    """Ops of a stage for one microbatch, forward or backward, or for a round of the update.

    Attributes:
        ops: op names in dependency order.
        arguments: names of the step's arguments that it takes.
        inputs: names of its other input tensors: received ones, averaged gradients, or outputs of
            the stage's forward subgraph.
        outputs: names of the tensors that it returns.
    """

    ops: tuple[str, ...]
    arguments: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class SubgraphClosure:
    """Ops that a subgraph has to contain, with its inputs, in the order of discovery.

    Attributes:
        ops: indices of the ops.
        arguments: names of the step's arguments.
        inputs: names of input tensors.
    """

    ops: set[int]
    arguments: dict[str, None]
    inputs: dict[str, None]

    def to_subgraph(self, graph: StepGraph, outputs: Iterable[str]) -> Subgraph:
        """Returns the subgraph that returns the tensors of the given names."""
        return Subgraph(
            tuple(graph.ops[index].name for index in sorted(self.ops)),
            tuple(sorted(self.arguments, key=graph.arguments.index)),
            tuple(sorted(self.inputs)),
            tuple(dict.fromkeys(outputs)),
        )


def collect_closure(
    graph: StepGraph,
    members: Iterable[int],
    outputs: Iterable[Any],
    is_input: Callable[[Any, int], bool],
) -> SubgraphClosure:
    """Returns the closure of a subgraph.

    Args:
        graph: the step.
        members: indices of ops that belong to the subgraph.
        outputs: tensors that it returns.
        is_input: returns whether a tensor, with the index of its op, is an input and not computed.
    """
    closure = SubgraphClosure(set(members), {}, {})
    pending = [tensor for index in sorted(closure.ops) for tensor in graph.ops[index].inputs]
    pending += outputs
    while pending:
        tensor = pending.pop()
        index = graph.op_index[tensor.op.name]
        if index in closure.ops or tensor.op.name in graph.captures:
            continue
        if tensor.op.name in graph.arguments:
            closure.arguments[tensor.op.name] = None
        elif is_input(tensor, index):
            closure.inputs[tensor.name] = None
        else:
            closure.ops.add(index)
            pending += tensor.op.inputs
    return closure


class Epilogue(Protocol):
    """Computation that a function runs on the outputs of its ops, in the same graph."""

    @property
    def specs(self) -> list[Any]:
        """The specs of its additional inputs."""
        ...

    @property
    def exchanges(self) -> bool:
        """True if it exchanges tensors with other ranks."""
        ...

    def __call__(self, outputs: list[Any], inputs: Sequence[Any]) -> list[Any]:
        """Returns the tensors that the function returns instead of `outputs`."""
        ...


class SubgraphExtractor:
    """Extracts functions from a trace."""

    def __init__(
        self, concrete: Any, random_ops: Mapping[str, ReplicatedRandomOp] | None = None
    ) -> None:
        """Extracts nothing yet.

        Args:
            concrete: the trace.
            random_ops: by name, ops that generate values for more examples than it is traced for.
        """
        self._concrete = concrete
        self._random_ops = random_ops or {}
        self._graph = concrete.graph
        num_args = len(concrete.inputs) - len(concrete.captured_inputs)
        placeholders = [tensor.op.name for tensor in concrete.inputs[num_args:]]
        self._captures = dict(zip(placeholders, concrete.captured_inputs, strict=True))

    @cached_property
    def _nodes(self) -> dict[str, Any]:
        return {node.name: node for node in self._graph_def.node}

    @cached_property
    def _graph_def(self) -> Any:
        return self._graph.as_graph_def()

    def extract(
        self,
        ops: Collection[str],
        inputs: Sequence[str],
        outputs: Sequence[str],
        epilogue: Epilogue | None = None,
        replica: int = 0,
        reductions: Mapping[str, int] | None = None,
    ) -> Callable[[Sequence[Any]], list[Any]]:
        """Returns a function that runs ops, including those without outputs.

        Args:
            ops: op names; control edges between them are preserved.
            inputs: names of its input tensors, which no op of it computes.
            outputs: names of the tensors that it returns, which may include inputs.
            epilogue: computation on these outputs.
            replica: index of the replica, among those that share a microbatch.
            reductions: by name, the gradient reductions among the ops that this rank replaces by a
                factor; see `_make_local`.

        Returns:
            A function of the input tensors, in this order, and then those of the epilogue.
        """
        graph_def, used = self._build_graph_def(ops, replica, reductions or {})
        captured = self.captures(ops, outputs)
        specs = [self._spec(name) for name in inputs]
        if epilogue is not None:
            specs += epilogue.specs
        members = set(ops)
        computed = [name for name in outputs if name.split(":")[0] in members]

        def run(*tensors: Any) -> list[Any]:
            values = dict(zip(inputs, tensors[: len(inputs)], strict=True))
            values |= {f"{name}:0": tf.convert_to_tensor(self._captures[name]) for name in captured}
            input_map = {name: tensor for name, tensor in values.items() if name in used}
            returned = tf.graph_util.import_graph_def(
                graph_def, input_map=input_map, return_elements=computed, name=""
            )
            values |= dict(zip(computed, returned or [], strict=True))
            results = [values[name] for name in outputs]
            return results if epilogue is None else epilogue(results, tensors[len(inputs) :])

        # Where a function of a whole step calls it, its ops are not optimized with those of other
        # microbatches, which might change the order of sums.
        apart = {"_noinline": True}
        function = tf.function(run, autograph=False, experimental_attributes=apart)
        concrete = function.get_concrete_function(*specs)
        exchanges = epilogue is not None and epilogue.exchanges
        return partial(_call, concrete, concrete.captured_inputs, self._concrete, exchanges)

    def _build_graph_def(
        self, ops: Collection[str], replica: int, reductions: Mapping[str, int]
    ) -> tuple[Any, set[str]]:
        """Returns a graph of ops, and the names of all tensors that they take."""
        graph_def = tf.compat.v1.GraphDef()
        graph_def.versions.CopyFrom(self._graph_def.versions)
        graph_def.library.CopyFrom(self.library(ops))
        members, used = set(ops), set()
        for name in ops:
            node = graph_def.node.add()
            node.CopyFrom(self._nodes[name])
            if name in self._random_ops:
                slice_global_random(graph_def, node, self._random_ops[name], replica)
            if name in reductions:
                dtype = self._graph.get_operation_by_name(name).outputs[0].dtype
                _make_local(graph_def, node, dtype, reductions[name])
            inputs = [
                edge for edge in node.input if not edge.startswith("^") or edge[1:] in members
            ]
            del node.input[:]
            node.input.extend(inputs)
            # Colocation may name ops outside of the subgraph.
            node.attr.pop("_class", None)
            used |= {edge if ":" in edge else f"{edge}:0" for edge in inputs}
        return graph_def, used

    def captures(self, ops: Collection[str], outputs: Sequence[str] = ()) -> frozenset[str]:
        """Returns the placeholders of captured tensors, such as variables, that a function uses."""
        used = {edge.lstrip("^") for name in ops for edge in self._nodes[name].input}
        names = {tensor.split(":")[0] for tensor in (*used, *outputs)}
        return frozenset(names & self._captures.keys())

    def library(self, ops: Collection[str]) -> Any:
        """Returns the library of all functions that ops call, directly or indirectly."""
        library = self._graph_def.library
        functions = {function.signature.name: function for function in library.function}
        pending = [self._nodes[name] for name in ops]
        called: set[str] = set()
        while pending:
            node = pending.pop()
            for value in node.attr.values():
                for function in (value.func, *value.list.func):
                    if function.name in functions and function.name not in called:
                        called.add(function.name)
                        pending += functions[function.name].node_def
        result = type(library)()
        result.function.extend(
            function for function in library.function if function.signature.name in called
        )
        return result

    def _spec(self, name: str) -> Any:
        tensor = self._graph.get_tensor_by_name(name)
        return tf.TensorSpec(tensor.shape, tensor.dtype)


def _call(
    function: Any, captured: Sequence[Any], _trace: Any, exchanges: bool, inputs: Sequence[Any]
) -> list[Any]:
    """Calls a function and returns its results; `_trace` keeps the bodies of its loops alive.

    A call through the public interface would check every argument, which takes longer than a small
    layer.
    """

    def run() -> list[Any]:
        return list(function.inference_fn.call_flat(*inputs, *captured) or ())  # None: no tensors

    guard = None if exchanges else active_guard()
    return run() if guard is None else guard.call(run, function.outputs)


def _make_local(graph_def: Any, node: Any, dtype: tf.DType, factor: int) -> None:
    """Makes a reduction return its gradient, which covers all examples, times a factor.

    Args:
        graph_def: the graph, to which nodes are added.
        node: a `LibraAllReduce` of one tensor.
        dtype: dtype of the tensor.
        factor: 1 for an average over ranks, the number of ranks for a sum.
    """
    gradient = node.input[0]
    controls = [edge for edge in node.input if edge.startswith("^")]
    node.op = "Identity" if factor == 1 else "Mul"
    node.attr.clear()
    node.attr["T"].type = dtype.as_datatype_enum
    del node.input[:]
    node.input.append(gradient)
    if factor != 1:
        value = np.array(factor, dtype.as_numpy_dtype)
        node.input.append(add_constant(graph_def, f"{node.name}/tf_libra_ranks", value))
    node.input.extend(controls)
