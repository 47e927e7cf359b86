"""Makes functions of some ops of a trace."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol

import tensorflow as tf

from tf_libra.model_parallel.partition.replicated_random import ReplicatedRandomOp, draw_for_all


class Finish(Protocol):
    """A final computation on the tensors that the ops of a function have computed."""

    @property
    def specs(self) -> list[Any]:
        """The specs of its other inputs."""
        ...

    def __call__(self, computed: list[Any], given: Sequence[Any]) -> list[Any]:
        """Returns the tensors that the function returns instead."""
        ...


class SubgraphExtraction:
    """A trace, of which functions are made."""

    def __init__(
        self, concrete: Any, draws: Mapping[str, ReplicatedRandomOp] | None = None
    ) -> None:
        """Makes none yet.

        Args:
            concrete: the trace.
            draws: by name, ops that draw for more samples than it is traced for.
        """
        self._concrete = concrete
        self._draws = draws or {}
        self._graph = concrete.graph
        num_args = len(concrete.inputs) - len(concrete.captured_inputs)
        self._captures = dict(
            zip(
                (one.op.name for one in concrete.inputs[num_args:]),
                concrete.captured_inputs,
                strict=True,
            )
        )

    @cached_property
    def _nodes(self) -> dict[str, Any]:
        return {node.name: node for node in self._definition.node}

    @cached_property
    def _definition(self) -> Any:
        return self._graph.as_graph_def()

    def function(
        self,
        ops: Collection[str],
        takes: Sequence[str],
        gives: Sequence[str],
        finish: "Finish | None" = None,
        replica: int = 0,
    ) -> Callable[[Sequence[Any]], list[Any]]:
        """A function that runs these ops, all that have an effect among them.

        Args:
            ops: names; control edges between them are kept.
            takes: names of the tensors that it is given, which no op of it computes.
            gives: names of those that it returns; what it is given may be among them.
            finish: goes on with what it returns, in the same graph.
            replica: of those that share a microbatch, whose samples it computes.

        Returns:
            A function of as many tensors, in this order, and then those that `finish` takes.
        """
        definition = tf.compat.v1.GraphDef()
        definition.versions.CopyFrom(self._definition.versions)
        definition.library.CopyFrom(self.library(ops))
        members, inputs = set(ops), set()
        for name in ops:
            node = definition.node.add()
            node.CopyFrom(self._nodes[name])
            if name in self._draws:
                draw_for_all(definition, node, self._draws[name], replica)
            kept = [one for one in node.input if not one.startswith("^") or one[1:] in members]
            del node.input[:]
            node.input.extend(kept)
            # Names of ops that may not be there.
            node.attr.pop("_class", None)
            inputs |= {one if ":" in one else f"{one}:0" for one in kept}
        captured = self.captures(ops, gives)
        specs = [self._spec(name) for name in takes]
        if finish is not None:
            specs += finish.specs
        computed = [name for name in gives if name.split(":")[0] in members]

        def run(*given: Any) -> list[Any]:
            there = dict(zip(takes, given[: len(takes)], strict=True))
            there |= {f"{name}:0": tf.convert_to_tensor(self._captures[name]) for name in captured}
            used = {name: tensor for name, tensor in there.items() if name in inputs}
            returned = tf.graph_util.import_graph_def(
                definition, input_map=used, return_elements=computed, name=""
            )
            values = there | dict(zip(computed, returned or [], strict=True))
            result = [values[name] for name in gives]
            return result if finish is None else finish(result, given[len(takes) :])

        concrete = tf.function(run, autograph=False).get_concrete_function(*specs)
        return partial(_called, concrete, concrete.captured_inputs, self._concrete)

    def captures(self, ops: Collection[str], gives: Sequence[str] = ()) -> frozenset[str]:
        """Names of the captured tensors, such as variables, that a function of these ops takes."""
        used = {one.lstrip("^") for name in ops for one in self._nodes[name].input}
        return frozenset({one.split(":")[0] for one in (*used, *gives)} & self._captures.keys())

    def library(self, ops: Collection[str]) -> Any:
        """The functions that these ops call, and those call."""
        library = self._definition.library
        known = {one.signature.name: one for one in library.function}
        waiting = [self._nodes[name] for name in ops]
        found: set[str] = set()
        while waiting:
            node = waiting.pop()
            for value in node.attr.values():
                for function in (value.func, *value.list.func):
                    if function.name in known and function.name not in found:
                        found.add(function.name)
                        waiting += known[function.name].node_def
        picked = type(library)()
        picked.function.extend(one for one in library.function if one.signature.name in found)
        return picked

    def _spec(self, name: str) -> Any:
        tensor = self._graph.get_tensor_by_name(name)
        return tf.TensorSpec(tensor.shape, tensor.dtype)


def _called(function: Any, captured: Sequence[Any], _trace: Any, given: Sequence[Any]) -> list[Any]:
    """Calls a function and returns its results; `_trace` keeps the bodies of its loops alive.

    A call through the public interface would check every argument, which takes longer than a small
    layer.
    """
    return list(function.inference_fn.call_flat(*given, *captured) or ())  # None: no tensors
