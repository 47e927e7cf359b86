"""Results of each rank's own examples, from a step that computes the joint batch.

Results depend on examples through tensors with one part per example, such as the losses of the
examples. From a rank's part of these tensors, the last ops compute the results that the rank would
have computed itself, at the cost of these ops alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.partition.sized_traces import SizedPartition, SizedTraces
from tf_libra.model_parallel.partition.subgraph import collect_closure


@dataclass(frozen=True)
class OwnResults:
    """Computation of the results of single ranks.

    Attributes:
        inputs: names of the tensors of the joint batch that the results are computed from.
        axes: by input, the axis of its examples; None if the tensor is the same for all ranks.
        num_examples: number of examples of each rank.
        specs: dtype and shape of each result.
        compute: returns the results of one rank from its parts of the inputs.
    """

    inputs: tuple[str, ...]
    axes: tuple[int | None, ...]
    num_examples: int
    specs: tuple[tf.TensorSpec, ...]
    compute: Callable[[Sequence[Any]], list[Any]]

    def of_rank(self, values: Sequence[Any], rank: int) -> list[Any]:
        """Returns the results of a rank.

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
        """Returns the results of this rank.

        Args:
            arguments: its arguments, by placeholder.
            results: its parts of the other inputs, by name.
        """
        values = {f"{name}:0": value for name, value in arguments.items()} | {**results}
        return self.compute([values[name] for name in self.inputs])


def share_own_results(traces: SizedTraces) -> OwnResults:
    """Lets traces return what the results of each rank are computed from, and returns how.

    Raises:
        ValueError: as `make_own_results` does.
    """
    own = make_own_results(traces.sized_partition(traces.examples_per_rank, (0,)))
    arguments = {f"{name}:0" for name in traces.microbatch_graph.arguments}
    traces.return_instead(tuple(name for name in own.inputs if name not in arguments))
    return own


def make_own_results(own: SizedPartition) -> OwnResults:
    """Returns the computation of each rank's results.

    Args:
        own: the step, traced for the examples of one rank.

    Raises:
        ValueError: a result depends on examples by other means than parts per example.
    """
    graph, axes = own.partition.graph, own.axes
    size = axes.batch_size

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

    closure = collect_closure(graph, [], graph.outputs, is_input)
    for index in sorted(closure.ops):
        op = graph.ops[index]
        if graph.handles[index] or op.op_def.is_stateful:
            raise ValueError(
                f"results of each rank's own examples cannot be computed after {op.name!r}, which"
                " has a state, as a metric has"
            )
    arguments = [f"{name}:0" for name in graph.arguments if name in closure.arguments]
    inputs = (*arguments, *closure.inputs)
    names = [graph.ops[index].name for index in sorted(closure.ops)]
    outputs = [tensor.name for tensor in graph.outputs]
    return OwnResults(
        inputs,
        tuple(axis_of(name) for name in inputs),
        size,
        tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in graph.outputs),
        own.extractor.extract(names, inputs, outputs),
    )
