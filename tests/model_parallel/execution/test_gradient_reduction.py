"""All-reduces of gradients within the backward computation."""

import contextlib

import numpy as np
import tensorflow as tf

from tests.model_parallel.threads import Threads
from tf_libra.model_parallel.execution.gradient_reduction import GradientReduction, fused_all_reduce
from tf_libra.model_parallel.execution.transport import LanesTransport


def test_reduction_sends_tensors_before_it_waits_for_an_all_reduce():
    """No waiting op precedes a sending op, also through TensorFlow's own control edges."""
    lanes = LanesTransport(1, "step", contextlib.nullcontext)
    variables = {f"reduction{i}": tf.Variable(tf.zeros([3, i + 1])) for i in range(3)}
    reduction = GradientReduction(
        names=tuple(variables),
        gradient_index={name: index + 1 for index, name in enumerate(variables)},
        plain_outputs=(0,),
        variables=variables,
        divisor=8,
        groups=(("reduction0", "reduction1"), ("reduction2",)),
        ranks=(1, 2),
        transport=lanes,
        label="of stage 1",
        send=lambda computed: lanes.send(computed[0], 0, "gradient"),
    )

    @tf.function(autograph=False)
    def step(x):
        gradients = (tf.ones_like(value) * tf.reduce_sum(x) for value in variables.values())
        return reduction([x, *gradients], [])

    graph = step.get_concrete_function(tf.TensorSpec([4])).graph
    ops = graph.get_operations()
    kinds = [op.type for op in ops]
    assert kinds.count("LibraCollectiveStart") == kinds.count("LibraMessageWait") == 2
    [send] = [op for op in ops if op.type == "LibraSend"]
    assert send in graph.control_outputs  # no op needs its output
    ancestors, pending = set(), [send]
    while pending:
        op = pending.pop()
        if op not in ancestors:
            ancestors.add(op)
            pending += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    assert "LibraMessageWait" not in {op.type for op in ancestors}


def test_fused_all_reduce_of_mixed_dtypes_and_sizes_preserves_each_tensor():
    """Among them are a scalar, an empty tensor, and one that is too large to be fused."""
    shapes = {"a": ([2, 3], tf.float32), "b": ([], tf.float64), "c": ([0, 4], tf.float32),
              "d": ([5], tf.float64), "e": ([512, 513], tf.float32)}  # fmt: skip
    tensors = {
        name: tf.reshape(tf.cast(tf.range(int(np.prod(shape))), dtype), shape)
        for name, (shape, dtype) in shapes.items()
    }
    found = fused_all_reduce(tensors, (0,), Threads(1).transport(0), "all")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor)
