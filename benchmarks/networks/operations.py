"""Arithmetic of TensorFlow's ops, and the gradient that is the first to need each op."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

# Ops that move or describe data.
# fmt: off
_NO_ARITHMETIC = frozenset((
    "Const", "Identity", "NoOp", "Placeholder", "ReadVariableOp", "Reshape", "Shape", "ShapeN",
    "Size", "Squeeze", "ExpandDims", "Transpose", "ConcatV2", "ConcatOffset", "Pack", "Unpack",
    "Slice", "StridedSlice", "GatherV2", "InvertPermutation", "Fill", "ZerosLike", "OnesLike",
    "Range", "Tile", "Pad", "BroadcastTo", "BroadcastGradientArgs", "Cast", "IdentityN",
    "StopGradient",
))
# fmt: on


def count_operations(op: Any) -> float:
    """Floating-point operations of one op of a graph whose shapes are static.

    Convolutions and matrix products: two per multiplication. Every other op: one per element of its
    largest input or output. Ops that only move data: none.

    Args:
      op: a `tf.Operation`.

    Raises:
      ValueError: a convolution's or product's shapes are not static.
    """
    if op.type in ("Conv2D", "DepthwiseConv2dNative"):
        return 2.0 * _elements(op.outputs[0]) * _per_output(op, op.inputs[1])
    if op.type in ("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput"):
        return 2.0 * _elements(op.inputs[2]) * _per_output(op, op.inputs[1])
    if op.type in ("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter"):
        return 2.0 * _elements(op.inputs[2]) * _per_output(op, op.outputs[0])
    if op.type in ("MatMul", "BatchMatMulV2"):
        transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        inner = op.inputs[0].shape[-2 if transposed else -1]
        if inner is None:
            raise ValueError(f"{op.name}: shapes must be static, got {op.inputs[0].shape}")
        return 2.0 * _elements(op.outputs[0]) * inner
    if op.type in _NO_ARITHMETIC:
        return 0.0
    return float(max((t.shape.num_elements() or 0 for t in (*op.inputs, *op.outputs)), default=0))


def _per_output(op: Any, kernel: Any) -> int:
    """Multiplications per element of a convolution's output."""
    height, width, channels, _ = kernel.shape
    size = height * width * (1 if op.type.startswith("Depthwise") else channels)
    return int(size)


def _elements(tensor: Any) -> int:
    elements = tensor.shape.num_elements()
    if elements is None:
        raise ValueError(f"{tensor.name}: shapes must be static, got {tensor.shape}")
    return int(elements)


def ancestors(nodes: Sequence[str], inputs: Mapping[str, Sequence[str]]) -> set[str]:
    """The nodes themselves and all that they are computed from."""
    found = set(nodes)
    pending = list(found)
    while pending:
        for source in inputs.get(pending.pop(), ()):
            if source not in found:
                found.add(source)
                pending.append(source)
    return found


def first_needed(
    producers: Sequence[str],
    inputs: Mapping[str, Sequence[str]],
    weights: Mapping[str, float],
    done: Collection[str],
) -> list[float]:
    """For each gradient the weight of the nodes that it needs, and none before it does.

    Args:
      producers: the node that produces each gradient, in backward order.
      inputs: the data inputs of every node.
      weights: of the nodes; 0 where there is none.
      done: nodes that count for no gradient: forward computation.

    Returns:
      Sums of weights, one per producer.
    """
    visited = set(done)
    sums = []
    for producer in producers:
        pending = [producer]
        parts = []
        while pending:
            node = pending.pop()
            if node in visited:
                continue
            visited.add(node)
            parts.append(weights.get(node, 0.0))
            pending.extend(inputs.get(node, ()))
        sums.append(math.fsum(parts))
    return sums
