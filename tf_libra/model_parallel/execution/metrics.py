"""Results of metrics over the replicas of a stage: of what all have seen, not a mean of results.

Each replica adds what it sees to variables of its own. A precision is a ratio of two of them, whose
denominators differ between replicas: the mean of ratios is another number than the ratio of sums.
So replicas send the variables, and the first one computes the result from their sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.capture.traced_ops import READS
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.subgraph_extraction import SubgraphExtraction

_SUMS = frozenset({"Add", "AddN", "AddV2", "Sub"})


@dataclass(frozen=True)
class Metric:
    """A returned tensor that is computed from variables to which replicas add.

    Attributes:
        name: of the tensor.
        reads: of each variable, the tensor by which the trace reads it.
        variables: their handles, in this order.
        call: what computes the tensor from what is read.
    """

    name: str
    reads: tuple[Any, ...]
    variables: tuple[Any, ...]
    call: Callable[[Sequence[Any]], list[Any]]

    @classmethod
    def of(
        cls, cut: StagePartition, extraction: SubgraphExtraction, tensor: Any
    ) -> "Metric | None":
        """Returns the metric for a returned tensor; None if it depends on anything else, too."""
        graph = cut.graph
        stage = cut.stage_of(cut.phase_of(tensor))
        reads, ops = [], []
        for place in sorted(graph.closure_after_reads(tensor)):
            op = graph.ops[place]
            if not graph.is_read_after_write(place):
                if op.type == "Placeholder" or op.op_def.is_stateful:
                    return None
                ops.append(op.name)
                continue
            [handle] = graph.handles[place]
            if not is_sum(graph, handle):
                return None
            if op.type not in READS or cut.stage_of_variable(handle) != stage:
                return None
            reads.append((op.outputs[0], graph.captures[handle]))
        if not reads:
            return None
        tensors, variables = zip(*reads, strict=True)
        call = extraction.function(ops, [one.name for one in tensors], [tensor.name])
        return cls(tensor.name, tensors, variables, call)

    def of_replicas(self, ranks: Sequence[int], transport: Transport) -> Any:
        """Computes the metric over all replicas, all of which call this after the last microbatch.

        Args:
            ranks: the replicas.
            transport: reaches them.

        Returns:
            The tensor, on the first of these ranks; None on the others.
        """
        root, *others = ranks
        sums = []
        for read, variable in zip(self.reads, self.variables, strict=True):
            here = f"{read.name} for {self.name}"
            value = tf.raw_ops.ReadVariableOp(resource=variable, dtype=read.dtype)
            if transport.rank != root:
                transport.send(value, root, here)
                continue
            values = [value]
            values += [transport.receive(value.dtype, value.shape, one, here) for one in others]
            sums.append(tf.add_n(values))
        return self.call(sums)[0] if transport.rank == root else None


def is_sum(graph: StepGraph, variable: str) -> bool:
    """Returns whether replicas add to a variable, so that its total is the sum over replicas.

    A variable that holds a maximum, for example, is no sum, nor is one that no microbatch writes.

    Args:
        graph: the step.
        variable: its placeholder.
    """
    writes = [place for place in graph.microbatch_effects if variable in graph.handles[place]]
    adds = bool(writes) and all(_adds(graph, one, variable) for one in writes)
    return graph.is_accumulator(variable) and adds


def _adds(graph: StepGraph, place: int, variable: str) -> bool:
    """Returns whether an op adds to a variable, sets it to a constant, or is not analyzed."""
    op = graph.ops[place]
    if op.type != "AssignVariableOp":
        return True
    value = _uncast(op.inputs[1])
    terms = [_uncast(one) for one in value.inputs] if value.type in _SUMS else []
    if value.type == "Sub":
        terms = terms[:1]
    return graph.is_constant[graph.op_index[value.name]] or any(
        one.type in READS and variable in graph.handles[graph.op_index[one.name]] for one in terms
    )


def _uncast(tensor: Any) -> Any:
    """The op that computes a tensor, but for what only hands it on."""
    while tensor.op.type in ("Cast", "Identity"):
        [tensor] = tensor.op.inputs
    return tensor.op


def added_up_in(graph: StepGraph, tensor: Any) -> tuple[str, ...]:
    """Names of the variables that every microbatch writes, of which a tensor is computed."""
    places = filter(graph.is_read_after_write, sorted(graph.closure_after_reads(tensor)))
    return tuple(graph.variable_name(handle) for one in places for handle in graph.handles[one])
