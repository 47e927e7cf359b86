"""A small model whose steps run under a plan, and the graphs that TensorFlow executes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context as tf_context

from tests.passes.graphs import (
    Group,
    config,
    controls,
    fused,
    joined,
    nodes,
)
from tf_libra.backends import engine
from tf_libra.internal import native
from tf_libra.profiling.executed_graph import GraphCapture
from tf_libra.runtime import grappler


@contextmanager
def engine_of_one() -> Iterator[None]:
    """Steps within execute, on an engine of one rank."""
    address = engine.listen("127.0.0.1")
    running = engine.connect(
        rank=0,
        addresses=[address],
        secret=bytes(engine.SECRET_BYTES),
        num_lanes=4,
        timeout_seconds=60.0,
        stall_warning_seconds=30.0,
    )
    yield
    running.close()


@contextmanager
def under(plan: str, **kwargs) -> Iterator[None]:
    """Calls within are made under a config that names the plan."""
    with calling(config(plan, alone=False, **kwargs)):
        yield


def calling(proto: config_pb2.ConfigProto) -> AbstractContextManager[None]:
    return grappler.calling(tf_context.FunctionCallOptions(config_proto=proto))


def executed(function, *args) -> graph_pb2.GraphDef:
    """Calls `function`, and returns the graph that TensorFlow made to execute it."""
    with GraphCapture() as capture:  # without graphs that earlier tests have left
        function(*args)
    assert not capture.unavailable
    graphs = map(joined, capture.graphs)
    (graph,) = (g for g in graphs if any(n.op == "LibraAllReduce" for n in g.node))
    return graph


def all_reduce(gradient: tf.Tensor, name: str) -> tf.Tensor:
    return native.load().ops.libra_all_reduce(tensors=[gradient], ends=[], tensor_names=[name])[0]


class Model:
    """A small convolutional network with a training step of its own."""

    def __init__(self) -> None:
        layers = tf.keras.layers
        self.model = tf.keras.Sequential(
            [
                layers.Input((8, 8, 3)),
                layers.Conv2D(4, 3, use_bias=False),  # oneDNN would merge BiasAddGrad away
                layers.BatchNormalization(),
                layers.Flatten(),
                layers.Dense(8, activation="relu"),
                layers.Dense(4),
            ]
        )
        self.optimizer = tf.keras.optimizers.Adam()
        self.optimizer.build(self.model.trainable_variables)
        paths = [variable.path for variable in self.model.trainable_variables]
        self.names = paths[::-1]  # backward order
        self.args = (tf.zeros((2, 8, 8, 3)), tf.zeros((2,), tf.int32))

    def step(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        gradients = tape.gradient(loss, variables)
        reduced = [
            all_reduce(gradient, variable.path)
            for gradient, variable in reversed(list(zip(gradients, variables, strict=True)))
        ]
        self.optimizer.apply_gradients(zip(reduced[::-1], variables, strict=True))
        return loss


def thirds(names: list[str]) -> list[Group]:
    return [Group(names[:2], 1), Group(names[2:5], 2), Group(names[5:], 1)]


def assert_is_in_force(graph: graph_pb2.GraphDef, plan: str, groups: list[Group]) -> None:
    """The executed graph holds the plan's groups, their threads and the edges between them."""
    by_name = nodes(graph)
    names = [f"tf_libra/{plan}/group_{k}" for k in range(len(groups))]
    assert fused(graph) == {
        name: list(group.tensors) for name, group in zip(names, groups, strict=True)
    }
    for k, group in enumerate(groups):
        assert by_name[names[k]].attr["num_threads"].i == group.num_threads
        assert k == 0 or names[k - 1] in controls(by_name[names[k]])
    assert sum(node.op == "LibraAllReduce" for node in graph.node) == len(groups)
