"""Networks that classify or segment images, by hand and by Keras."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.real.running import By, Scripts

SCRIPTS = Scripts()


CLASSES = 4


def digits(random: np.random.Generator, count: int = 8) -> tuple[Any, Any]:
    images = random.normal(size=(count, 8, 8, 1)).astype(np.float32)
    return images, random.integers(0, CLASSES, size=count)


def sparse_loss(labels: Any, logits: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def weight(shape: tuple[int, ...], seed: int, name: str, dtype: str = "float32") -> tf.Variable:
    random = np.random.default_rng(seed)
    scale = 1 / np.sqrt(np.prod(shape[:-1]))
    return tf.Variable((random.normal(size=shape) * scale).astype(dtype), name=name)


@SCRIPTS
def convolution_by_hand(by: By) -> Any:
    """One layer, [w, b], as in countless notebooks."""
    w, b = weight((3, 3, 1, CLASSES), 1, "w"), tf.Variable(tf.zeros([CLASSES]), name="b")

    @by.optimize()
    @tf.function
    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            features = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, w, 1, "SAME"), b))
            loss = sparse_loss(labels, tf.reduce_mean(features, axis=[1, 2]))
        for variable, gradient in zip([w, b], tape.gradient(loss, [w, b]), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    for images, labels in by.batches(5, digits):
        train_step(images, labels)
    return [w, b]


@SCRIPTS
def convnet_by_hand(by: By) -> Any:
    """Two convolutions, pooling, two dense layers, weights in a dictionary."""
    params = {
        "w1": weight((5, 5, 1, 6), 1, "w1"),
        "b1": tf.Variable(tf.zeros([6]), name="b1"),
        "w2": weight((3, 3, 6, 8), 2, "w2"),
        "b2": tf.Variable(tf.zeros([8]), name="b2"),
        "wd": weight((2 * 2 * 8, 10), 3, "wd"),
        "bd": tf.Variable(tf.zeros([10]), name="bd"),
        "out": weight((10, CLASSES), 4, "out"),
        "bout": tf.Variable(tf.zeros([CLASSES]), name="bout"),
    }

    def conv(x: Any, w: Any, b: Any) -> Any:
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w, [1, 1, 1, 1], "SAME"), b))

    def network(x: Any) -> Any:
        x = tf.nn.max_pool2d(conv(x, params["w1"], params["b1"]), 2, 2, "SAME")
        x = tf.nn.max_pool2d(conv(x, params["w2"], params["b2"]), 2, 2, "SAME")
        x = tf.reshape(x, [-1, 2 * 2 * 8])
        x = tf.nn.relu(x @ params["wd"] + params["bd"])
        return x @ params["out"] + params["bout"]

    @by.optimize()
    @tf.function
    def run_optimization(x: Any, y: Any) -> Any:
        with tf.GradientTape() as g:
            loss = sparse_loss(y, network(x))
        gradients = g.gradient(loss, params)
        for key, gradient in gradients.items():
            params[key].assign_sub(0.05 * gradient)
        return loss

    for x, y in by.batches(5, digits):
        run_optimization(x, y)
    return list(params.values())


@SCRIPTS
def depthwise_by_hand(by: By) -> Any:
    """A MobileNet block: depthwise with bias, pointwise with bias."""
    depth, depth_bias = weight((3, 3, 3, 1), 1, "depth"), tf.Variable(tf.zeros([3]), name="db")
    point, point_bias = weight((1, 1, 3, 8), 2, "point"), tf.Variable(tf.zeros([8]), name="pb")
    head, head_bias = weight((8, CLASSES), 3, "head"), tf.Variable(tf.zeros([CLASSES]), name="hb")
    variables = [depth, depth_bias, point, point_bias, head, head_bias]

    @by.optimize()
    @tf.function
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            x = tf.nn.depthwise_conv2d(images, depth, [1, 1, 1, 1], "SAME")
            x = tf.nn.relu6(tf.nn.bias_add(x, depth_bias))
            x = tf.nn.relu6(tf.nn.bias_add(tf.nn.conv2d(x, point, 1, "VALID"), point_bias))
            logits = tf.reduce_mean(x, axis=[1, 2]) @ head + head_bias
            loss = sparse_loss(labels, logits)
        for v, g in zip(variables, tape.gradient(loss, variables), strict=True):
            v.assign_sub(0.1 * g)
        return loss

    def colored(random: np.random.Generator) -> Any:
        return random.normal(size=(8, 8, 8, 3)).astype("float32"), random.integers(0, CLASSES, 8)

    for images, labels in by.batches(5, colored):
        step(images, labels)
    return variables


@SCRIPTS
def functional_convnet(by: By) -> Any:
    """Keras' functional API with a residual connection, trained by a loop of one's own."""
    inputs = keras.Input((8, 8, 1))
    x = block = layers.Conv2D(6, 3, padding="same", activation="relu")(inputs)
    x = layers.SeparableConv2D(6, 3, padding="same", activation="relu")(x)
    x = layers.add([x, block])
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(CLASSES)(x))
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @by.optimize()
    @tf.function
    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(images, training=True))
        grads = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(grads, model.trainable_weights, strict=True))
        return loss

    for images, labels in by.batches(5, digits):
        train_step(images, labels)
    return model.trainable_weights


class ResidualBlock(keras.layers.Layer):
    """Two convolutions with batch normalization and a shortcut."""

    def __init__(self, filters: int, stride: int) -> None:
        super().__init__()
        self.first = layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)
        self.first_norm = layers.BatchNormalization()
        self.second = layers.Conv2D(filters, 3, padding="same", use_bias=False)
        self.second_norm = layers.BatchNormalization()
        self.shortcut = layers.Conv2D(filters, 1, stride) if stride > 1 else None

    def call(self, x: Any, training: bool = False) -> Any:
        y = tf.nn.relu(self.first_norm(self.first(x), training=training))
        y = self.second_norm(self.second(y), training=training)
        return tf.nn.relu(y + (x if self.shortcut is None else self.shortcut(x)))


@SCRIPTS.like("horovod")
def residual_network(by: By) -> Any:
    """Batch statistics are each rank's own; what Horovod trains is the reference."""
    model = keras.Sequential(
        [
            layers.Conv2D(4, 3, padding="same"),
            ResidualBlock(4, 1),
            ResidualBlock(6, 2),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES),
        ]
    )
    model.build((None, 8, 8, 1))
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @by.optimize()
    @tf.function
    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = sparse_loss(labels, model(images, training=True))
        grads = by.average(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    for images, labels in by.batches(5, digits):
        train_step(images, labels)
    return model.trainable_variables


@SCRIPTS
def unet(by: By) -> Any:
    """Segmentation: down, up by transposed convolution, skips."""
    inputs = keras.Input((8, 8, 1))
    first = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    down = layers.MaxPooling2D()(first)
    second = layers.Conv2D(8, 3, padding="same", activation="relu")(down)
    bottom = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.MaxPooling2D()(second))
    up = layers.Conv2DTranspose(8, 3, 2, padding="same", activation="relu")(bottom)
    up = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.concatenate([up, second]))
    up = layers.concatenate([layers.UpSampling2D()(up), first])
    model = keras.Model(inputs, layers.Conv2D(3, 1)(up))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @by.optimize()
    @tf.function
    def train_step(images: Any, masks: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = sparse_loss(masks, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def scenes(random: np.random.Generator) -> Any:
        images = random.normal(size=(4, 8, 8, 1)).astype("float32")
        return images, random.integers(0, 3, size=(4, 8, 8))

    for images, masks in by.batches(5, scenes):
        train_step(images, masks)
    return model.trainable_variables


@SCRIPTS
def mixed_precision_by_fit(by: By) -> Any:
    """The policy of Keras' guide; `compile` wraps the optimizer in a loss scale."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, activation="relu"),
            layers.Dense(8, activation="relu"),
            layers.Dense(CLASSES, dtype="float32"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    random = np.random.default_rng(2)
    x, y = random.normal(size=(48, 8)).astype("float32"), random.integers(0, CLASSES, 48)
    by.fit(model, (x, y), batch=4)
    return model.trainable_variables


@SCRIPTS.like("horovod")
def loss_scale_from_two_to_the_twentieth(by: By) -> Any:
    """The first steps overflow on one rank or on both, and lower the scale until none does.

    An example's part in the mean of a share is larger than in that of the joint batch, so that one
    process alone may keep twice the scale; what Horovod trains is the reference.
    """
    keras.mixed_precision.set_global_policy("mixed_float16")
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(1, dtype="float32")]
    )
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.02), initial_scale=2.0**20, dynamic_growth_steps=4
    )

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
            scaled = optimizer.scale_loss(loss)
        gradients = by.average(tape.gradient(scaled, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def rows(random: np.random.Generator) -> Any:
        x = random.normal(size=(8, 8)).astype("float32")
        return x, x[:, :1] - 2 * x[:, 1:2]

    for x, y in by.batches(20, rows):
        train_step(x, y)
    return [*model.trainable_variables, optimizer.dynamic_scale]
