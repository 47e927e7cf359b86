"""Real steps of real nets under plans: what each was trained to, with and without the pass.

    python -m tests.passes.real_nets

prints one line of JSON per net. Whether oneDNN rewrites graphs is decided when TensorFlow starts
(TF_ENABLE_ONEDNN_OPTS), so this is a program of its own.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as tf_context

from tests.passes.graphs import Group, config, reasons, register, report
from tests.passes.traced_steps import all_reduce, engine_of_one

layers = tf.keras.layers


@dataclass(frozen=True)
class Net:
    """A net to train: the loss of `inputs`, by the gradients of `variables`."""

    loss: Callable[..., tf.Tensor]
    variables: Sequence[tf.Variable]
    inputs: Sequence[tf.Tensor]


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(0, 0.3, shape).astype("f")


def variables(*shapes: tuple[int, ...]) -> list[tf.Variable]:
    return [tf.Variable(random(*shape), name=f"v{i}") for i, shape in enumerate(shapes)]


def of_keras(model: tf.keras.Model, *inputs: np.ndarray) -> Net:
    def loss(*inputs: tf.Tensor) -> tf.Tensor:
        outputs = model(inputs if len(inputs) > 1 else inputs[0], training=True)
        return tf.reduce_mean(tf.square(tf.cast(outputs, tf.float32) - 0.5))

    return Net(loss, model.trainable_variables, [tf.constant(value) for value in inputs])


def convolutions_by_hand() -> Net:
    w, b, w2, b2 = values = variables((3, 3, 3, 4), (4,), (3, 3, 4, 4), (4,))

    def loss(x: tf.Tensor) -> tf.Tensor:
        y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b))
        return tf.reduce_mean(tf.nn.bias_add(tf.nn.conv2d(y, w2, 2, "VALID"), b2) ** 2)

    return Net(loss, values, [tf.constant(random(2, 8, 8, 3))])


def depthwise_by_hand() -> Net:
    w, b, w2, b2 = values = variables((3, 3, 3, 2), (6,), (1, 1, 6, 4), (4,))

    def loss(x: tf.Tensor) -> tf.Tensor:
        y = tf.nn.depthwise_conv2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), w, [1] * 4, "VALID")
        y = tf.nn.relu6(tf.nn.bias_add(y, b))
        return tf.reduce_mean(tf.nn.bias_add(tf.nn.conv2d(y, w2, 1, "SAME"), b2) ** 2)

    return Net(loss, values, [tf.constant(random(2, 8, 8, 3))])


def shared_gradient() -> Net:
    """Two convolutions and one bias, and a rank-2 bias, whose gradients read one tensor each."""
    u, w, b, c, d = values = variables((3, 3, 3, 4), (1, 1, 3, 4), (4,), (4, 3), (1, 3))

    def loss(x: tf.Tensor) -> tf.Tensor:
        y = tf.nn.conv2d(x, u, 1, "SAME") + tf.nn.conv2d(x, w, 1, "SAME")
        y = tf.reshape(tf.nn.relu(tf.nn.bias_add(y, b)), (-1, 4))
        return tf.reduce_mean((tf.matmul(y, c) + d) ** 2)

    return Net(loss, values, [tf.constant(random(2, 4, 4, 3))])


def recomputed() -> Net:
    """The input of the filter's gradient is computed again next to the bias' gradient."""
    w, b, w2, b2 = values = variables((3, 3, 3, 4), (4,), (3, 3, 4, 4), (4,))

    @tf.custom_gradient
    def block(x: tf.Tensor, u: tf.Tensor, a: tf.Tensor):
        def forward(x, u, a):
            return tf.nn.bias_add(tf.nn.conv2d(tf.nn.tanh(x), u, 1, "SAME"), a)

        def gradient(g):
            again = tf.nn.tanh(tf.raw_ops.PreventGradient(input=x))
            return (
                tf.nn.conv2d_transpose(g, u, tf.shape(x), 1, "SAME") * (1 - again**2),
                tf.raw_ops.Conv2DBackpropFilter(
                    input=again, filter_sizes=u.shape, out_backprop=g,
                    strides=[1] * 4, padding="SAME"),
                tf.raw_ops.BiasAddGrad(out_backprop=g),
            )  # fmt: skip

        return forward(x, u, a), gradient

    def loss(x: tf.Tensor) -> tf.Tensor:
        y = block(x, tf.convert_to_tensor(w), tf.convert_to_tensor(b))
        return tf.reduce_mean(block(y, tf.convert_to_tensor(w2), tf.convert_to_tensor(b2)) ** 2)

    return Net(loss, values, [tf.constant(random(2, 8, 8, 3))])


def residual_with_batch_norm() -> Net:
    inputs = layers.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    shortcut = layers.Conv2D(6, 1)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.ZeroPadding2D()(x)
    x = layers.BatchNormalization()(layers.Conv2D(6, 3)(x))
    x = layers.ReLU()(layers.Add()([x, shortcut]))
    x = layers.SeparableConv2D(5, 3)(x)
    x = layers.Dense(3)(layers.GlobalAveragePooling2D()(layers.MaxPooling2D()(x)))
    return of_keras(tf.keras.Model(inputs, x), random(2, 8, 8, 3))


def attention() -> Net:
    tokens = layers.Input((6,), dtype="int32")
    x = layers.Embedding(11, 8)(tokens)
    y = layers.MultiHeadAttention(2, 4)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, y]))
    y = layers.Dense(8)(layers.Dense(16, activation="gelu")(x))
    x = layers.LayerNormalization()(layers.Add()([x, y]))
    model = tf.keras.Model(tokens, layers.Dense(11)(x))
    return of_keras(model, np.arange(12, dtype=np.int32).reshape(2, 6) % 11)


def learned_initial_state() -> Net:
    a, d = layers.Input((5,)), layers.Input((7, 3))
    _, state = layers.GRU(8, return_state=True)(d, initial_state=layers.Dense(8)(a))
    model = tf.keras.Model([a, d], layers.Dense(1)(state))
    return of_keras(model, random(4, 5), random(4, 7, 3))


def sequence_to_sequence() -> Net:
    a, b = layers.Input((5, 3)), layers.Input((6, 2))
    encoded, *state = layers.LSTM(4, return_state=True)(layers.Dense(3)(a))
    decoded = layers.LSTM(4, return_sequences=True)(b, initial_state=state)
    x = layers.TimeDistributed(layers.Dense(3))(decoded)
    model = tf.keras.Model([a, b], layers.Add()([x, layers.RepeatVector(6)(encoded[:, :3])]))
    return of_keras(model, random(2, 5, 3), random(2, 6, 2))


def simple_rnn_stack() -> Net:
    x = inputs = layers.Input((6, 3))
    x = layers.SimpleRNN(5, return_sequences=True)(x)
    x = layers.Bidirectional(layers.LSTM(4))(x)
    return of_keras(tf.keras.Model(inputs, layers.Dense(2)(x)), random(3, 6, 3))


def differential_equation() -> Net:
    """Euler steps in a loop of TensorFlow, from a learned start, to a learned end."""
    w, b, start, end = values = variables((4, 4), (4,), (3, 4), (4, 2))

    def loss(x: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(x, start)
        for _ in tf.range(5):
            y = y + 0.1 * tf.tanh(tf.matmul(y, w) + b)
        return tf.reduce_mean(tf.matmul(y, end) ** 2)

    return Net(tf.function(loss), values, [tf.constant(random(5, 3))])


def equilibrium() -> Net:
    w, start, end = values = variables((4, 4), (3, 4), (4, 2))

    def loss(x: tf.Tensor) -> tf.Tensor:
        bias = tf.matmul(x, start)
        y = tf.zeros_like(bias)
        count, change = tf.constant(0), tf.constant(1.0)
        while change > 1e-2 and count < 20:
            new = tf.tanh(0.3 * tf.matmul(y, w) + bias)
            change = tf.reduce_max(tf.abs(new - y))
            y, count = new, count + 1
        return tf.reduce_mean(tf.matmul(y, end) ** 2)

    return Net(tf.function(loss), values, [tf.constant(random(5, 3))])


def messages() -> Net:
    w, start, end = values = variables((4, 4), (3, 4), (4, 2))
    senders, receivers = tf.constant([0, 1, 2, 3, 4, 0]), tf.constant([1, 2, 3, 4, 0, 2])

    def loss(x: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(x, start)
        for _ in tf.range(3):
            sent = tf.gather(tf.matmul(y, w), senders)
            y = tf.nn.relu(y + tf.math.unsorted_segment_sum(sent, receivers, 5))
        return tf.reduce_mean(tf.matmul(y, end) ** 2)

    return Net(tf.function(loss), values, [tf.constant(random(5, 3))])


def conditional() -> Net:
    w, b, end = values = variables((3, 4), (4,), (4, 2))

    def loss(x: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(x, w)
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.relu(y + b), lambda: tf.tanh(y - b))
        return tf.reduce_mean(tf.matmul(y, end) ** 2)

    return Net(loss, values, [tf.constant(random(5, 3))])


def mixed_precision() -> Net:
    policy = tf.keras.mixed_precision.Policy("mixed_bfloat16")
    x = inputs = layers.Input((8, 8, 3))
    for filters in (4, 6):
        x = layers.Conv2D(filters, 3, activation="relu", dtype=policy)(x)
    x = layers.Dense(2, dtype=policy)(layers.Flatten()(x))
    return of_keras(tf.keras.Model(inputs, x), random(2, 8, 8, 3))


def two_towers() -> Net:
    a, b = layers.Input((4,)), layers.Input((3,))
    x, y = layers.Dense(6, activation="relu")(a), layers.Dense(6, activation="tanh")(b)
    x, y = layers.Dense(5)(x), layers.Dense(5)(y)
    return of_keras(tf.keras.Model([a, b], layers.Dot(1)([x, y])), random(6, 4), random(6, 3))


NETS = (
    convolutions_by_hand,
    depthwise_by_hand,
    shared_gradient,
    recomputed,
    residual_with_batch_norm,
    attention,
    learned_initial_state,
    sequence_to_sequence,
    simple_rnn_stack,
    differential_equation,
    equilibrium,
    messages,
    conditional,
    mixed_precision,
    two_towers,
)
# Nets in which oneDNN merges ops. If it rewrites nothing, the others run as they do with it.
MERGED_BY_ONEDNN = (
    convolutions_by_hand,
    depthwise_by_hand,
    recomputed,
    residual_with_batch_norm,
    attention,
    mixed_precision,
)
REWRITES = os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0"


def plans(names: Sequence[str]) -> list[tuple[list[Group], bool]]:
    """Returns groups of a plan, and whether they wait for backward.

    In backward order, one group each, pairs and halves; against it; and one that is measured. If
    oneDNN rewrites nothing, pairs and the opposite order are enough.
    """
    backward = list(names)[::-1]
    half = (len(names) + 1) // 2
    every = [
        ([Group([name]) for name in backward], False),
        ([Group(backward[i : i + 2], 2) for i in range(0, len(backward), 2)], False),
        ([Group(backward[:half]), Group(backward[half:])], False),
        ([Group([name]) for name in names], False),
        ([Group([name]) for name in backward], True),
    ]
    return every if REWRITES else every[1:4:2]


def train(net: Net, step: Callable, plan: str | None) -> list[np.ndarray]:
    """Weights after two steps from the start."""
    context = tf_context.context()
    previous = context.function_call_options
    if plan is not None:
        proto = config(plan, alone=False)
        context.function_call_options = tf_context.FunctionCallOptions(config_proto=proto)
    try:
        for _ in range(2):
            step(*net.inputs)
    finally:
        context.function_call_options = previous
    return [variable.numpy() for variable in net.variables]


def run(net: Net) -> dict:
    """Trains the net under each plan; returns the largest deviations from training without one."""
    names = [f"t{i}" for i in range(len(net.variables))]

    @tf.function
    def step(*inputs: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = net.loss(*inputs)
        gradients = tape.gradient(loss, net.variables)
        pairs = list(zip(gradients, net.variables, names, strict=True))
        reduced = [all_reduce(tf.convert_to_tensor(g), name) for g, _, name in pairs[::-1]]
        for value, (_, variable, _) in zip(reduced[::-1], pairs, strict=True):
            variable.assign_sub(0.1 * tf.cast(value, variable.dtype))
        return loss

    start = [variable.numpy() for variable in net.variables]
    found: dict = {"deviation": [], "skipped": []}
    expected = train(net, step, None)
    found["moved"] = float(max(np.abs(a - b).max() for a, b in zip(expected, start, strict=True)))
    for groups, after_backward in plans(names):
        for variable, value in zip(net.variables, start, strict=True):
            variable.assign(value)
        plan = register(groups, after_backward=after_backward)
        trained = train(net, step, plan)
        graphs = [name for name, graph in report(plan).items() if graph["groups"]]
        found["skipped"] += [reasons(plan, name) for name in graphs]
        written = sum(len(group["tensors"]) for graph in graphs
                      for group in report(plan)[graph]["groups"])  # fmt: skip
        assert written == len(names), (written, report(plan))
        deviation = [np.abs(a - b).max() for a, b in zip(trained, expected, strict=True)]
        found["deviation"].append(float(max(deviation)))
    return found


def main() -> None:
    with engine_of_one():
        for make in NETS if REWRITES else MERGED_BY_ONEDNN:
            try:
                result = run(make())
            except (tf.errors.OpError, AssertionError) as error:
                result = {"error": str(error)}
            print(json.dumps({"net": make.__name__, **result}), flush=True)


if __name__ == "__main__":
    main()
