"""Results of each rank's own examples, from a step that computes the joint batch.

Results depend on examples through tensors with one part per example, such as the losses of the
examples. From a rank's part of these tensors, the last ops compute the results that the rank would
have computed itself, at the cost of these ops alone. A metric has variables of its own on each
rank, so the ops that use them run on the rank itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.capture.traced_ops import CHECKS
from tf_libra.model_parallel.partition.sized_traces import SizedPartition, SizedTraces
from tf_libra.model_parallel.partition.subgraph import collect_closure
from tf_libra.planning.allowed_differences import JOINT_RESULTS, describe_allowing


@dataclass(frozen=True)
class OwnResults:
    """Computation of the results of single ranks.

    Attributes:
        inputs: names of the tensors of the joint batch that the results are computed from.
        axes: by input, the axis of its examples; None if the tensor is the same for all ranks.
        num_examples: number of examples of each rank.
        specs: dtype and shape of each tensor that `compute` returns.
        compute: returns what the results of one rank are finished from, from its parts of the
            inputs, on any rank.
        rank_local: placeholders of the variables of metrics, which `finish` alone uses.
        finish: returns the results of this rank, and writes its metrics.
    """

    inputs: tuple[str, ...]
    axes: tuple[int | None, ...]
    num_examples: int
    specs: tuple[tf.TensorSpec, ...]
    compute: Callable[[Sequence[Any]], list[Any]]
    rank_local: frozenset[str]
    finish: Callable[[Sequence[Any]], list[Any]]

    def of_rank(self, values: Sequence[Any], rank: int) -> list[Any]:
        """Returns what the results of a rank are finished from.

        Args:
            values: the inputs for the joint batch.
            rank: the rank.
        """
        examples = slice(rank * self.num_examples, (rank + 1) * self.num_examples)
        parts = [
            value if axis is None else value[(*(slice(None),) * axis, examples)]
            for value, axis in zip(values, self.axes, strict=True)
        ]
        return self.compute(parts)

    def of_own(self, arguments: Mapping[str, Any], results: Mapping[str, Any]) -> list[Any]:
        """Returns the results of this rank, and writes its metrics.

        Args:
            arguments: its arguments, by placeholder.
            results: its parts of the other inputs, by name.
        """
        values = {f"{name}:0": value for name, value in arguments.items()} | {**results}
        return self.finish(self.compute([values[name] for name in self.inputs]))


def share_own_results(traces: SizedTraces) -> OwnResults:
    """Lets traces return what the results of each rank are computed from, and returns how.

    Raises:
        ValueError: as `make_own_results` does.
    """
    own = make_own_results(traces.sized_partition(traces.examples_per_rank, (0,)))
    arguments = {f"{name}:0" for name in traces.microbatch_graph.arguments}
    outputs = tuple(name for name in own.inputs if name not in arguments)
    traces.return_instead(outputs, own.rank_local)
    return own


def make_own_results(own: SizedPartition) -> OwnResults:
    """Returns the computation of each rank's results.

    Args:
        own: the step, traced for the examples of one rank.

    Raises:
        ValueError: a result depends on examples by other means than parts per example, or a metric
            influences more than results.
    """
    graph, axes = own.partition.graph, own.axes
    size = axes.batch_size
    outputs = [tensor.name for tensor in graph.outputs]
    uses_metrics = _find_uses_of_metrics(graph)
    writes = [index for index in _effects(graph) if uses_metrics[index]]
    if writes or any(uses_metrics[graph.op_index[tensor.op.name]] for tensor in graph.outputs):
        last = collect_closure(
            graph,
            writes,
            graph.outputs,
            lambda _, index: not (uses_metrics[index] or graph.is_constant[index]),
        )
        computed = [*(f"{name}:0" for name in last.arguments), *last.inputs]
        names = [graph.ops[index].name for index in sorted(last.ops)]
        finish = own.extractor.extract(names, computed, outputs)
    else:
        computed, finish = outputs, list

    def axis_of(name: str) -> int | None:
        try:
            axis = axes.batch_axis(name)
        except ValueError:
            return None
        shape = graph.recording.concrete.graph.get_tensor_by_name(name).shape
        return axis if axis is not None and shape[axis] == size else None

    def is_input(tensor: Any, index: int) -> bool:
        if graph.is_constant[index]:
            return False
        return not graph.is_per_example[index] or axis_of(tensor.name) is not None

    tensors = [own.partition.tensor(name) for name in computed]
    closure = collect_closure(graph, [], tensors, is_input)
    for index in sorted(closure.ops):
        op = graph.ops[index]
        if graph.handles[index] or (op.op_def.is_stateful and op.type not in CHECKS):
            raise ValueError(
                f"results of each rank's own examples cannot be computed after {op.name!r}, which"
                f" has a state; {describe_allowing(JOINT_RESULTS)}"
            )
    arguments = [f"{name}:0" for name in graph.arguments if name in closure.arguments]
    inputs = (*arguments, *closure.inputs)
    for name in closure.inputs:
        if axis_of(name) is None and _grows(axes, name):
            raise ValueError(
                f"results are computed from {name!r}, which grows with the batch, but not by one"
                f" part for each example; {describe_allowing(JOINT_RESULTS)}"
            )
    names = [graph.ops[index].name for index in sorted(closure.ops)]
    return OwnResults(
        inputs,
        tuple(axis_of(name) for name in inputs),
        size,
        tuple(tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name) for tensor in tensors),
        own.extractor.extract(names, inputs, computed),
        graph.metric_variables,
        finish,
    )


def _grows(axes: BatchAxes, tensor: str) -> bool:
    try:
        return axes.batch_axis(tensor) is not None
    except ValueError:  # of no static shape
        return False


def _effects(graph: StepGraph) -> list[int]:
    return sorted({*graph.microbatch_effects, *graph.update_effects})


def _find_uses_of_metrics(graph: StepGraph) -> list[bool]:
    """Returns, by op, whether it uses a metric's variable, or a value computed from one.

    Raises:
        ValueError: gradients, or writes of other variables, are computed from one.
    """
    accesses = {
        index
        for index, handles in enumerate(graph.handles)
        if not graph.metric_variables.isdisjoint(handles)
    }
    uses = graph.find_dependents(accesses)
    trained = [graph.op_index[tensor.op.name] for tensor in graph.gradients.values()]
    others = [
        index
        for index in _effects(graph)
        if not _writes_metric(graph, index) and graph.ops[index].type not in CHECKS
    ]
    for index in sorted(graph.closure([*trained, *others])):
        if uses[index]:
            raise ValueError(
                f"{graph.ops[index].name!r} takes the state of a metric, of which every rank has"
                " its own"
            )
    return uses


def _writes_metric(graph: StepGraph, index: int) -> bool:
    """Returns whether an effect is one on variables of metrics alone."""
    handles = graph.handles[index]
    return bool(handles) and graph.metric_variables.issuperset(handles)
