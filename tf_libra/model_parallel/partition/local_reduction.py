"""Replacement of gradient reductions in a function that computes all examples by itself."""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.model_parallel.partition.replicated_random import add_constant


def make_local(graph_def: Any, node: Any, dtype: tf.DType, factor: int) -> None:
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
