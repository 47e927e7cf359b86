"""Random ops that do not depend on the number of replicas.

Replicas have the same seeds. If each replica generated values for its own examples only, all would
use the same values for different examples, and another number of replicas would change the values.
So each replica generates the random tensor of the whole microbatch and slices out its own examples.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_libra.internal import tf_internal
from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.capture.step_graph import StepGraph

# Types of ops that may generate a random tensor; those that do have an input `shape`.
_RANDOM = re.compile(r"Random|TruncatedNormal|^Stateful(Uniform|StandardNormal)")
# This op advances a generator's state by the number of generated values.
_ADVANCE_GENERATOR = "RngReadAndSkip"


@dataclass(frozen=True, eq=False)
class ReplicatedRandomOp:
    """Change of a random op in a replica's trace, so that it covers the whole microbatch.

    Attributes:
        input_index: index of the input that determines the number of values.
        input_value: value of this input for the whole microbatch.
        dtype: dtype of the generated values.
        axis: batch axis of the output; None if it has none.
        local_shape: shape of the replica's part of the output.
    """

    input_index: int
    input_value: NDArray[Any]
    dtype: tf.DType
    axis: int | None = None
    local_shape: tuple[int, ...] = ()


def find_replicated_random_ops(
    graph: StepGraph, axes: BatchAxes, microbatch_graph: StepGraph
) -> dict[str, ReplicatedRandomOp]:
    """Returns the ops that generate values for every example, by name.

    The result excludes ops whose parameters depend on examples, and ops without a seed, whose
    values differ on every rank anyway.

    Args:
        graph: the step, traced for a replica's examples.
        axes: batch axes of this trace.
        microbatch_graph: the step, traced for a microbatch.
    """
    found = {}
    for op in graph.ops:
        if op.type == _ADVANCE_GENERATOR:
            change = _change_of_advance(op, microbatch_graph)
        elif _RANDOM.search(op.type) and not _is_unseeded(op):
            change = _change_of_random_tensor(op, graph, axes, microbatch_graph)
        else:
            continue
        if change is not None:
            found[op.name] = change
    return found


def _is_unseeded(op: Any) -> bool:
    """Returns whether an op has no seed, so that every process generates other values."""
    seeds = [attr.i for name, attr in op.node_def.attr.items() if name in ("seed", "seed2")]
    return bool(seeds) and not any(seeds)


def _change_of_advance(op: Any, microbatch_graph: StepGraph) -> ReplicatedRandomOp | None:
    index = [arg.name for arg in op.op_def.input_arg].index("delta")
    microbatch_op = microbatch_graph.ops[microbatch_graph.op_index[op.name]]
    values = [tf_internal.smart_constant_value(each.inputs[index]) for each in (op, microbatch_op)]
    if any(value is None for value in values) or np.array_equal(*values):
        return None
    value = np.asarray(values[1], op.inputs[index].dtype.as_numpy_dtype)
    return ReplicatedRandomOp(index, value, op.outputs[0].dtype)


def _change_of_random_tensor(
    op: Any, graph: StepGraph, axes: BatchAxes, microbatch_graph: StepGraph
) -> ReplicatedRandomOp | None:
    names = [arg.name for arg in op.op_def.input_arg]
    if "shape" not in names:
        return None
    index = names.index("shape")
    if any(graph.is_per_example[graph.op_index[tensor.op.name]] for tensor in op.inputs):
        return None
    [output] = op.outputs
    try:
        axis = axes.batch_axis(output.name)
    except ValueError:  # the output cannot be divided into examples
        return None
    shape = microbatch_graph.ops[microbatch_graph.op_index[op.name]].outputs[0].shape
    rank = op.inputs[index].shape.num_elements()
    is_known = output.shape.is_fully_defined() and shape.is_fully_defined() and rank is not None
    if not is_known or axis is None or axis >= rank:
        return None
    # Dimensions of the op's parameters may follow the requested shape.
    value = np.array(shape.as_list()[:rank], op.inputs[index].dtype.as_numpy_dtype)
    return ReplicatedRandomOp(index, value, output.dtype, axis, tuple(output.shape.as_list()))


def slice_global_random(
    graph_def: Any, node: Any, change: ReplicatedRandomOp, replica: int
) -> None:
    """Makes a node generate values for the whole microbatch, and slices out the replica's part.

    Args:
        graph_def: the graph, to which nodes are added.
        node: the random op, which generates values for a replica's examples.
        change: what replaces the op's input and output.
        replica: index of the replica; replica 0 has the first examples.
    """
    name = node.name
    node.input[change.input_index] = add_constant(
        graph_def, f"{name}/tf_libra_amount", change.input_value
    )
    if change.axis is None:
        return
    begin = np.zeros(len(change.local_shape), np.int32)
    begin[change.axis] = replica * change.local_shape[change.axis]
    node.name = f"{name}/tf_libra_all"
    part = graph_def.node.add()
    part.name, part.op, part.device = name, "Slice", node.device
    part.attr["T"].type = change.dtype.as_datatype_enum
    part.attr["Index"].type = tf.int32.as_datatype_enum
    size = np.array(change.local_shape, np.int32)
    part.input.extend(
        [
            node.name,
            add_constant(graph_def, f"{name}/tf_libra_begin", begin),
            add_constant(graph_def, f"{name}/tf_libra_size", size),
        ]
    )


def add_constant(graph_def: Any, name: str, value: NDArray[Any]) -> str:
    """Adds a constant to a graph and returns its name."""
    node = graph_def.node.add()
    node.name, node.op = name, "Const"
    node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    return name
