"""Networks that learn representations of images or learn from other networks."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.real.images import CLASSES, digits, sparse_loss
from tests.real.running import By, Scripts

SCRIPTS = Scripts()


@SCRIPTS
def autoencoder_by_fit(by: By) -> Any:
    """A subclassed model of two sequential ones, by `fit`."""

    class Autoencoder(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = keras.Sequential([layers.Flatten(), layers.Dense(12, activation="relu")])
            self.decoder = keras.Sequential(
                [layers.Dense(64, activation="sigmoid"), layers.Reshape((8, 8, 1))]
            )

        def call(self, x: Any) -> Any:
            return self.decoder(self.encoder(x))

    model = Autoencoder()
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), "mse")
    images = np.random.default_rng(3).random(size=(32, 8, 8, 1)).astype("float32")
    model(images[:1])
    by.fit(model, (images, images), batch=4)
    return model.trainable_variables


@SCRIPTS
def siamese_network(by: By) -> Any:
    """Contrastive loss between two images that share a tower."""
    tower = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(6, activation="tanh"),
        ]
    )
    left, right = keras.Input((8, 8, 1)), keras.Input((8, 8, 1))
    distance = layers.Lambda(
        lambda both: tf.sqrt(
            tf.reduce_sum(tf.square(both[0] - both[1]), axis=1, keepdims=True) + 1e-7
        ),
        output_shape=(1,),
    )([tower(left), tower(right)])
    model = keras.Model([left, right], layers.Dense(1, activation="sigmoid")(distance))
    optimizer = keras.optimizers.RMSprop(1e-3, epsilon=1e-2)
    optimizer.build(model.trainable_variables)

    @by.optimize()
    @tf.function
    def train_step(first: Any, second: Any, same: Any) -> Any:
        with tf.GradientTape() as tape:
            found = model([first, second], training=True)
            margin = tf.square(tf.maximum(1.0 - found, 0.0))
            loss = tf.reduce_mean((1 - same) * tf.square(found) + same * margin)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def pairs(random: np.random.Generator) -> Any:
        images = random.normal(size=(2, 8, 8, 8, 1)).astype("float32")
        return images[0], images[1], random.integers(0, 2, size=(8, 1)).astype("float32")

    for first, second, same in by.batches(5, pairs):
        train_step(first, second, same)
    return model.trainable_variables


@SCRIPTS
def simclr(by: By) -> Any:
    """Two views, a projection head, InfoNCE within each example's own negatives."""
    encoder = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(8),
        ]
    )
    head = keras.Sequential(
        [keras.Input((8,)), layers.Dense(8, activation="relu"), layers.Dense(4)]
    )
    variables = encoder.trainable_variables + head.trainable_variables
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(variables)

    @by.optimize()
    @tf.function
    def train_step(views: Any) -> Any:
        with tf.GradientTape() as tape:
            flat = tf.reshape(views, [-1, 8, 8, 1])
            z = tf.math.l2_normalize(head(encoder(flat, training=True), training=True), axis=1)
            z = tf.reshape(z, [-1, 4, 4])
            similar = tf.einsum("bqd,bkd->bqk", z[:, :2], z[:, 2:]) / 0.5
            labels = tf.tile([[0, 1]], [tf.shape(z)[0], 1])
            loss = sparse_loss(labels, similar)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def views(random: np.random.Generator) -> Any:
        return random.normal(size=(4, 4, 8, 8, 1)).astype("float32")

    for batch in by.batches(5, views):
        train_step(batch)
    return variables


@SCRIPTS
def distillation(by: By) -> Any:
    """A frozen teacher; the student learns its soft targets."""
    teacher = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(CLASSES)])
    teacher.trainable = False
    student = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(3, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        soft = tf.nn.softmax(teacher(x, training=False) / 3.0)
        with tf.GradientTape() as tape:
            logits = student(x, training=True)
            loss = 0.3 * sparse_loss(y, logits) + 0.7 * tf.reduce_mean(
                keras.losses.kl_divergence(soft, tf.nn.softmax(logits / 3.0))
            )
        gradients = tape.gradient(loss, student.trainable_variables)
        optimizer.apply_gradients(zip(gradients, student.trainable_variables, strict=True))
        return loss

    for x, y in by.batches(5, digits):
        train_step(x, y)
    return student.trainable_variables
