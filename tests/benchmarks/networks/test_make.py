"""The networks are traced and measured for real; small ones in full, a published one's trace."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import networks
from benchmarks.networks.make import make, to_json, trace
from benchmarks.networks.models import TASKS, Task
from benchmarks.networks.network import from_json


def small_task() -> Task:
    layers = tf.keras.layers
    images = tf.keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False, name="first")(images)
    x = layers.ReLU()(layers.DepthwiseConv2D(3, use_bias=False, name="second")(x))
    model = tf.keras.Model(images, layers.Dense(10, name="third")(layers.Flatten()(x)))

    def batch(samples):
        return np.ones((samples, 8, 8, 3), np.float32), np.zeros(samples, np.int32)

    def loss(data):
        logits = model(data[0], training=True)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=data[1], logits=logits)
        )

    return Task("Small", "here", "8x8x3", batch, model, loss)


def test_makes_a_network_that_reads_back():
    network = make("small", small_task(), batch=2, steps=2)
    assert from_json(to_json(network)) == network
    names = [tensor.name for tensor in network.tensors]
    assert sorted(names[:2]) == ["third/bias", "third/kernel"]
    assert names[2:] == ["second/kernel", "first/kernel"]
    assert [tensor.num_bytes for tensor in network.tensors[2:]] == [4 * 36, 4 * 108]
    assert all(tensor.cpu_seconds > 0 for tensor in network.tensors[2:])
    assert network.cpu.forward_seconds > 0


def test_counts_what_each_gradient_is_the_first_to_need():
    traced = trace(small_task(), batch=2)
    operations = dict(zip(traced.names, traced.operations, strict=True))
    # Per sample: 36 positions of 4 channels come out of the depthwise convolution.
    dense, depthwise, first = 2 * 144 * 10, 2 * 144 * 9, 2 * 256 * 27
    assert operations["third/kernel"] >= dense
    # The gradient of the depthwise convolution's output comes from the dense layer's.
    assert dense + depthwise <= operations["second/kernel"] <= dense + depthwise + 2000
    assert depthwise + first <= operations["first/kernel"] <= depthwise + first + 2000
    assert traced.forward_operations >= dense + depthwise + first


@pytest.mark.parametrize("name", ["xception"])
def test_cached_network_is_the_traced_network(name):
    network = networks.load(name)
    traced = trace(TASKS[name](), batch=network.cpu.batch)
    # Keras numbers the layers of a process on, so the order and the sizes are compared.
    assert [t.num_bytes for t in network.tensors] == traced.num_bytes
    assert [t.operations for t in network.tensors] == traced.operations
    assert network.forward_operations == traced.forward_operations
