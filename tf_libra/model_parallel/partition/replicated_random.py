"""Random ops that are independent of replication.

Replicas have the same seeds. If each replica drew for its own samples alone, all would draw the
same numbers for different samples, and another number of replicas would draw other numbers. So each
replica draws for the whole microbatch and takes the part of its own samples.
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

# Of these, what takes a shape.
_DRAWING = re.compile(r"Random|TruncatedNormal|^Stateful(Uniform|StandardNormal)")
# A generator's state moves on by as much as was drawn.
_MOVING_ON = "RngReadAndSkip"


@dataclass(frozen=True, eq=False)
class ReplicatedRandomOp:
    """The change to an op of a replica's trace that makes it draw for the whole microbatch.

    Attributes:
        index: of the input that says how much it draws.
        value: of this input, for the whole microbatch.
        dtype: of what it draws.
        axis: along which samples lie in that; None: it has none.
        own: shape of what the replica's samples need of it.
    """

    index: int
    value: NDArray[Any]
    dtype: tf.DType
    axis: int | None = None
    own: tuple[int, ...] = ()


def draws(graph: StepGraph, axes: BatchAxes, whole: StepGraph) -> dict[str, ReplicatedRandomOp]:
    """Returns the ops that draw for every sample, by name.

    Ops whose draws depend on values of samples, and ops without a seed, which draw differently on
    every rank, are left out.

    Args:
        graph: the step, traced for a replica's samples.
        axes: of this trace.
        whole: the step, traced for a microbatch.
    """
    found = {}
    for op in graph.ops:
        if op.type == _MOVING_ON:
            one = _moved_on(op, whole)
        elif _DRAWING.search(op.type) and not _is_unseeded(op):
            one = _drawn(op, graph, axes, whole)
        else:
            continue
        if one is not None:
            found[op.name] = one
    return found


def _is_unseeded(op: Any) -> bool:
    """Returns whether an op has no seed, so that every process draws other numbers."""
    seeds = [attr.i for name, attr in op.node_def.attr.items() if name in ("seed", "seed2")]
    return bool(seeds) and not any(seeds)


def _moved_on(op: Any, whole: StepGraph) -> ReplicatedRandomOp | None:
    index = [one.name for one in op.op_def.input_arg].index("delta")
    values = [
        tf_internal.smart_constant_value(one.inputs[index])
        for one in (op, whole.ops[whole.op_index[op.name]])
    ]
    if any(value is None for value in values) or np.array_equal(*values):
        return None
    value = np.asarray(values[1], op.inputs[index].dtype.as_numpy_dtype)
    return ReplicatedRandomOp(index, value, op.outputs[0].dtype)


def _drawn(
    op: Any, graph: StepGraph, axes: BatchAxes, whole: StepGraph
) -> ReplicatedRandomOp | None:
    names = [one.name for one in op.op_def.input_arg]
    if "shape" not in names:
        return None
    index = names.index("shape")
    if any(graph.is_per_example[graph.op_index[one.op.name]] for one in op.inputs):
        return None
    [output] = op.outputs
    try:
        axis = axes.batch_axis(output.name)
    except ValueError:  # it cannot be divided into samples
        return None
    shape = whole.ops[whole.op_index[op.name]].outputs[0].shape
    length = op.inputs[index].shape.num_elements()
    known = output.shape.is_fully_defined() and shape.is_fully_defined() and length is not None
    if not known or axis is None or axis >= length:
        return None
    # Dimensions of the op's parameters may follow the requested shape.
    value = np.array(shape.as_list()[:length], op.inputs[index].dtype.as_numpy_dtype)
    return ReplicatedRandomOp(index, value, output.dtype, axis, tuple(output.shape.as_list()))


def draw_for_all(definition: Any, node: Any, draw: ReplicatedRandomOp, replica: int) -> None:
    """Lets a node of a graph draw for the whole microbatch, of which this replica gets its part.

    Args:
        definition: the graph, to which nodes are added.
        node: which draws for a replica's samples.
        draw: how.
        replica: the first one has the first samples.
    """
    name = node.name
    node.input[draw.index] = _constant(definition, f"{name}/tf_libra_amount", draw.value)
    if draw.axis is None:
        return
    begin = np.zeros(len(draw.own), np.int32)
    begin[draw.axis] = replica * draw.own[draw.axis]
    node.name = f"{name}/tf_libra_all"
    part = definition.node.add()
    part.name, part.op, part.device = name, "Slice", node.device
    part.attr["T"].type = draw.dtype.as_datatype_enum
    part.attr["Index"].type = tf.int32.as_datatype_enum
    part.input.extend(
        [
            node.name,
            _constant(definition, f"{name}/tf_libra_begin", begin),
            _constant(definition, f"{name}/tf_libra_size", np.array(draw.own, np.int32)),
        ]
    )


def _constant(definition: Any, name: str, value: NDArray[Any]) -> str:
    node = definition.node.add()
    node.name, node.op = name, "Const"
    node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    return name
