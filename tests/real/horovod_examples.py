"""Horovod's own examples, and the models of Keras 2 that they train, re-created.

The reference is the undecorated script: Horovod averages.
"""

import itertools
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
import tf_keras

from tests.real.running import By, Scripts

SCRIPTS = Scripts()
CLASSES = 4


def digits(random: np.random.Generator) -> Any:
    images = random.normal(size=(8, 10, 10, 1)).astype(np.float32)
    return images, random.integers(0, CLASSES, size=8)


def mnist_model(seed: int = 1) -> Any:
    tf_keras.utils.set_random_seed(seed)
    model = tf_keras.Sequential(
        [
            tf_keras.layers.Conv2D(4, [3, 3], activation="relu"),
            tf_keras.layers.Conv2D(6, [3, 3], activation="relu"),
            tf_keras.layers.MaxPooling2D(pool_size=(2, 2)),
            tf_keras.layers.Flatten(),
            tf_keras.layers.Dense(12, activation="relu"),
            tf_keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.build((None, 10, 10, 1))
    return model


@SCRIPTS.like("horovod")
def mnist_with_first_batch(by: By) -> Any:
    """Ranks start apart; after the first batch rank 0's weights and slots are broadcast.

    Under TF-Libra all start from rank 0's weights; so does the reference.
    """
    model = mnist_model(seed=1 + by.rank if by.ours else 1)
    loss = tf_keras.losses.SparseCategoricalCrossentropy()
    optimizer = tf_keras.optimizers.legacy.SGD(0.01 * hvd.size(), momentum=0.9)

    @by.optimize()
    @tf.function
    def training_step(images: Any, labels: Any, first_batch: bool) -> Any:
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables(), root_rank=0)
        return value

    for number, (images, labels) in enumerate(by.batches(5, digits)):
        training_step(images, labels, number == 0)
    return model.trainable_variables


@SCRIPTS.like("horovod")
def mnist_broadcast_before(by: By) -> Any:
    """Every rank starts from rank 0's weights, which the script broadcasts by itself."""
    model = mnist_model(seed=1 + by.rank)
    hvd.broadcast_variables(model.variables, root_rank=0)
    loss = tf_keras.losses.SparseCategoricalCrossentropy()
    optimizer = tf_keras.optimizers.SGD(0.01 * hvd.size())

    @by.optimize()
    @tf.function
    def training_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return value

    for images, labels in by.batches(5, digits):
        training_step(images, labels)
    return model.trainable_variables


@SCRIPTS.like("horovod")
def synthetic_benchmark(by: By) -> Any:
    """A network with batch normalization, compressed gradients, `opt.apply_gradients`."""
    tf_keras.utils.set_random_seed(3)
    inputs = tf_keras.Input((10, 10, 1))
    x = tf_keras.layers.Conv2D(4, 3, use_bias=False)(inputs)
    x = tf_keras.layers.ReLU()(tf_keras.layers.BatchNormalization()(x))
    x = tf_keras.layers.GlobalAveragePooling2D()(x)
    model = tf_keras.Model(inputs, tf_keras.layers.Dense(CLASSES, activation="softmax")(x))
    optimizer = tf_keras.optimizers.legacy.SGD(0.05)

    @by.optimize()
    @tf.function
    def benchmark_step(data: Any, target: Any) -> None:
        with tf.GradientTape() as tape:
            probs = model(data, training=True)
            loss = tf.reduce_mean(tf_keras.losses.sparse_categorical_crossentropy(target, probs))
        tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for data, target in by.batches(5, digits):
        benchmark_step(data, target)
    return model.trainable_variables


@SCRIPTS
def plain_tape_over_mnist(by: By) -> Any:
    """The same network without Horovod's tape: a convolution's bias and kernel in one step."""
    model = mnist_model()
    loss = tf_keras.losses.SparseCategoricalCrossentropy()
    optimizer = tf_keras.optimizers.Adam(0.001, epsilon=0.1)
    optimizer.build(model.trainable_variables)

    @by.optimize()
    @tf.function
    def training_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    for images, labels in by.batches(5, digits):
        training_step(images, labels)
    return model.trainable_variables


@SCRIPTS.like("horovod")
def word_vectors_by_horovod(by: By) -> Any:
    """Slices that Horovod's tape gathers, and a dense gradient that it averages."""
    random = np.random.default_rng(2)
    embeddings = tf.Variable(random.normal(size=(16, 4)), name="embeddings")
    nce = tf.Variable(random.normal(size=(16, 4)), name="nce")
    scale = tf.Variable(np.ones(4), name="scale")
    variables = [embeddings, nce, scale]

    @by.optimize()
    @tf.function
    def train_step(words: Any, contexts: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            dots = tf.reduce_sum(
                tf.gather(embeddings, words) * tf.gather(nce, contexts) * scale, axis=1
            )
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, dots))
        tape = hvd.DistributedGradientTape(tape)
        for v, g in zip(variables, tape.gradient(loss, variables), strict=True):
            v.assign_sub(0.5 * tf.convert_to_tensor(g))
        return loss

    def pairs(random: np.random.Generator) -> Any:
        labels = random.integers(0, 2, 8).astype(float)
        return random.integers(0, 16, 8), random.integers(0, 16, 8), labels

    for batch in by.batches(5, pairs):
        train_step(*batch)
    return variables


@SCRIPTS.like("horovod")
def gradients_averaged_by_hand(by: By) -> Any:
    """`hvd.allreduce` of every gradient, and of the loss that is shown."""
    model = mnist_model()
    loss = tf_keras.losses.SparseCategoricalCrossentropy()
    optimizer = tf_keras.optimizers.SGD(0.02, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @by.optimize()
    @tf.function
    def training_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        gradients = [hvd.allreduce(gradient) for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return hvd.allreduce(value, name="shown")

    for images, labels in by.batches(5, digits):
        training_step(images, labels)
    return model.trainable_variables


@SCRIPTS.like("horovod")
def elastic_mnist(by: By) -> Any:
    """Horovod's elastic mode: a first batch of each rank's own makes the slots, then all agree."""
    model = mnist_model(seed=1 + by.rank)
    loss = tf_keras.losses.SparseCategoricalCrossentropy()
    optimizer = tf_keras.optimizers.Adam(0.001 * hvd.size())

    @tf.function
    def training_step(images: Any, labels: Any, allreduce: bool = True) -> Any:
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        if allreduce:
            tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return value

    training_step(*by.share(*digits(np.random.default_rng(1))), allreduce=False)
    # Decorated from here on: a worker that joins is alone at its first batch.
    decorated = by.optimize()(training_step)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)
    state.register_reset_callbacks([lambda: optimizer.lr.assign(0.001 * hvd.size())])

    @hvd.elastic.run
    def train(state: Any) -> None:
        for images, labels in itertools.islice(by.batches(8, digits), state.batch, None):
            decorated(images, labels)
            state.batch += 1
            state.commit()

    train(state)
    return model.trainable_variables
