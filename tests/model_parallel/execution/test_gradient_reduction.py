"""Gradients that are all-reduced from within backward computation."""

import contextlib

import numpy as np
import tensorflow as tf

from tests.model_parallel.threads import Threads
from tf_libra.model_parallel.execution.gradient_reduction import GradientReduction, fused_all_reduce
from tf_libra.model_parallel.execution.lanes_transport import Lanes


def test_what_others_wait_for_is_sent_before_any_all_reduce_has_ended():
    """No op that waits comes before one that sends, whatever TensorFlow orders by itself."""
    lanes = Lanes(1, "step", contextlib.nullcontext)
    variables = {f"reduction{i}": tf.Variable(tf.zeros([3, i + 1])) for i in range(3)}
    reducing = GradientReduction(
        names=tuple(variables),
        places={name: place + 1 for place, name in enumerate(variables)},
        kept=(0,),
        variables=variables,
        divisor=8,
        groups=(("reduction0", "reduction1"), ("reduction2",)),
        ranks=(1, 2),
        transport=lanes,
        name="of stage 1",
        send=lambda computed: lanes.send(computed[0], 0, "handed back"),
    )

    @tf.function(autograph=False)
    def step(x):
        computed = [x, *(tf.ones_like(one) * tf.reduce_sum(x) for one in variables.values())]
        return reducing(computed, [])

    graph = step.get_concrete_function(tf.TensorSpec([4])).graph
    ops = graph.get_operations()
    kinds = [op.type for op in ops]
    assert kinds.count("LibraCollectiveStart") == kinds.count("LibraMessageWait") == 2
    [sends] = [op for op in ops if op.type == "LibraSend"]
    assert sends in graph.control_outputs  # no op needs its output
    before, waiting = set(), [sends]
    while waiting:
        op = waiting.pop()
        if op not in before:
            before.add(op)
            waiting += [one.op for one in op.inputs] + list(op.control_inputs)
    assert "LibraMessageWait" not in {op.type for op in before}


def test_tensors_of_several_dtypes_are_summed_and_keep_their_places():
    """A scalar, an empty one, and one that is too large to be put with others, among them."""
    shapes = {"a": ([2, 3], tf.float32), "b": ([], tf.float64), "c": ([0, 4], tf.float32),
              "d": ([5], tf.float64), "e": ([512, 513], tf.float32)}  # fmt: skip
    transport = Threads(1).of(0)
    tensors = {
        name: tf.reshape(tf.cast(tf.range(int(np.prod(shape))), dtype), shape)
        for name, (shape, dtype) in shapes.items()
    }
    found = fused_all_reduce(tensors, (0,), transport, "all")
    assert found.keys() == tensors.keys()
    for name, one in tensors.items():
        assert found[name].dtype == one.dtype
        np.testing.assert_array_equal(found[name], one)
