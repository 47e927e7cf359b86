"""Results of metrics over all replicas of a stage, computed from the replicas' variables.

Each replica accumulates into its own variables. A precision, for example, is a ratio of two of
them, whose denominators differ between replicas: the mean of ratios is not the ratio of sums.
So replicas send the variables, and the first replica computes the result from their sums.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.capture.traced_ops import READS
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.subgraph import SubgraphExtractor

_SUMS = frozenset({"Add", "AddN", "AddV2", "Sub"})


@dataclass(frozen=True)
class Metric:
    """Returned tensor that is computed from variables into which replicas accumulate.

    Attributes:
        name: name of the tensor.
        reads: by variable, the tensor that reads it in the trace.
        variables: handles of the variables.
        compute: computes the tensor from the values of the variables.
    """

    name: str
    reads: tuple[Any, ...]
    variables: tuple[Any, ...]
    compute: Callable[[Sequence[Any]], list[Any]]

    @classmethod
    def from_tensor(
        cls, partition: StagePartition, extractor: SubgraphExtractor, tensor: Any
    ) -> "Metric | None":
        """Returns the metric for a returned tensor; None if it depends on anything else, too."""
        graph = partition.graph
        stage = partition.stage_of_phase(partition.phase_of_tensor(tensor))
        reads, ops = [], []
        for index in sorted(graph.closure_after_reads(tensor)):
            op = graph.ops[index]
            if not graph.is_read_after_write(index):
                if op.type == "Placeholder" or op.op_def.is_stateful:
                    return None
                ops.append(op.name)
                continue
            [handle] = graph.handles[index]
            if not is_replica_sum(graph, handle):
                return None
            if op.type not in READS or partition.stage_of_variable(handle) != stage:
                return None
            reads.append((op.outputs[0], graph.captures[handle]))
        if not reads:
            return None
        tensors, variables = zip(*reads, strict=True)
        compute = extractor.extract(ops, [read.name for read in tensors], [tensor.name])
        return cls(tensor.name, tensors, variables, compute)

    def compute_over_replicas(self, ranks: Sequence[int], transport: Transport) -> Any:
        """Computes the metric over all replicas, which all call this after the last microbatch.

        Args:
            ranks: the replicas.
            transport: transport between them.

        Returns:
            The tensor, on the first of these ranks; None on the others.
        """
        root, *others = ranks
        sums = []
        for read, variable in zip(self.reads, self.variables, strict=True):
            message = f"{read.name} for {self.name}"
            value = tf.raw_ops.ReadVariableOp(resource=variable, dtype=read.dtype)
            if transport.rank != root:
                transport.send(value, root, message)
                continue
            values = [value]
            values += [
                transport.receive(value.dtype, value.shape, rank, message) for rank in others
            ]
            sums.append(tf.add_n(values))
        return self.compute(sums)[0] if transport.rank == root else None


def is_replica_sum(graph: StepGraph, placeholder: str) -> bool:
    """Returns whether replicas add to a variable, so that its total is the sum over replicas.

    A variable that holds a maximum, for example, is no sum, nor is one that no microbatch writes.

    Args:
        graph: the step.
        placeholder: placeholder of the variable.
    """
    writes = [index for index in graph.microbatch_effects if placeholder in graph.handles[index]]
    return (
        graph.is_accumulator(placeholder)
        and bool(writes)
        and all(_is_addition(graph, index, placeholder) for index in writes)
    )


def _is_addition(graph: StepGraph, index: int, placeholder: str) -> bool:
    """Returns whether an op adds to a variable or sets it to a constant; unknown ops count."""
    op = graph.ops[index]
    if op.type != "AssignVariableOp":
        return True
    value = _skip_casts(op.inputs[1])
    terms = [_skip_casts(tensor) for tensor in value.inputs] if value.type in _SUMS else []
    if value.type == "Sub":
        terms = terms[:1]
    return graph.is_constant[graph.op_index[value.name]] or any(
        term.type in READS and placeholder in graph.handles[graph.op_index[term.name]]
        for term in terms
    )


def _skip_casts(tensor: Any) -> Any:
    """Returns the op that computes a tensor, behind casts and identities."""
    while tensor.op.type in ("Cast", "Identity"):
        [tensor] = tensor.op.inputs
    return tensor.op


def accumulated_variables(graph: StepGraph, tensor: Any) -> tuple[str, ...]:
    """Returns the names of variables that every microbatch writes and a tensor depends on."""
    reads = filter(graph.is_read_after_write, sorted(graph.closure_after_reads(tensor)))
    return tuple(graph.variable_name(handle) for index in reads for handle in graph.handles[index])


def warn_of_averages(log: logging.Logger, step: str, averaged: Iterable[tuple[str, ...]]) -> None:
    """Warns of results that are averages of metrics, given by the names of their variables."""
    for names in averaged:
        log.warning(
            "%s returns what is computed of %s, and not of sums over samples alone: it is averaged"
            " over the replicas of a stage, where a ratio of sums would be another number; return"
            " the metric's result by itself",
            step,
            ", ".join(names),
        )
