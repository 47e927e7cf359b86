"""Makers of training steps that stages do not support."""

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

import tf_libra


def weights() -> list[tf.Variable]:
    return [tf.Variable(tf.eye(64), name=f"weight{i}") for i in range(3)]


def apply(variables: list[tf.Variable], gradients: list[tf.Tensor]) -> None:
    """Takes a step of gradient descent with learning rate 1."""
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(gradient)


def forward(variables: list[tf.Variable], images: tf.Tensor) -> tf.Tensor:
    x = tf.reshape(images, [-1, 64])
    for weight in variables:
        x = tf_libra.boundary(tf.tanh(x @ weight))
    return tf.reduce_mean(x)


def two_losses() -> Any:
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        for part in (variables[:1], variables[1:]):
            with tf.GradientTape() as tape:
                loss = forward(variables, images)
            apply(part, tape.gradient(loss, part))

    return step


def adversarial() -> Any:
    """Returns a step with a generator and a discriminator, each with a loss and an optimizer."""
    keras = tf.keras
    generator = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(64)])
    discriminator = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    generator.build([None, 8, 8, 1])
    discriminator.build([None, 64])
    optimizers = [keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)]

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as first, tf.GradientTape() as second:
            fake = discriminator(generator(images))
            real = discriminator(tf.reshape(images, [-1, 64]))
            losses = [tf.reduce_mean(fake), tf.reduce_mean(real - fake)]
        for optimizer, tape, loss, model in zip(
            optimizers, (first, second), losses, (generator, discriminator), strict=True
        ):
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    return step


def other_ops_by_batch_size() -> Any:
    """Returns a step that computes other ops for another batch size."""
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
            if images.shape[0] > 8:
                loss = tf.square(loss)
        apply(variables, tape.gradient(loss, variables))

    return step


def unknown_shape() -> Any:
    """Returns a step in which a tensor of unknown shape crosses layers."""
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            x = tf.tanh(tf.reshape(images, [-1, 64]) @ variables[0])
            selected = tf.boolean_mask(x, labels > 4)
            x = tf_libra.boundary(x)
            for weight in variables[1:]:
                x = tf_libra.boundary(tf.tanh(x @ weight))
            loss = tf.reduce_mean(x) * tf.reduce_sum(selected**2)
        apply(variables, tape.gradient(loss, variables))

    return step


def input_gradient() -> Any:
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = forward(variables, images)
        return tape.gradient(loss, [*variables, images])[-1]

    return step


def complex_weight() -> Any:
    variables = weights()
    phase = tf.Variable(tf.ones([], tf.complex64), name="phase")

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images) * tf.math.real(phase)
        trained = [*variables, phase]
        apply(trained, tape.gradient(loss, trained))

    return step


def jacobian() -> Any:
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        return tape.jacobian(loss, variables[0])

    return step


def boundary_in_a_function() -> Any:
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.function(forward)(variables, images)
        variables[0].assign_sub(tape.gradient(loss, variables)[0])

    return step


def conditional_print() -> Any:
    """Returns a step that updates and prints only if all gradients are finite."""
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        gradients = tape.gradient(loss, variables)
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(grad)) for grad in gradients])
        if finite:
            apply(variables, gradients)
            tf.print("updated")

    return step


def loss_in_update() -> Any:
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        apply(variables, [grad * loss for grad in tape.gradient(loss, variables)])

    return step


def print_after_update() -> Any:
    """Returns a step that prints the loss with a counter that the update has incremented."""
    variables, steps = weights(), tf.Variable(0, dtype=tf.int64, name="steps")

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        apply(variables, tape.gradient(loss, variables))
        steps.assign_add(1)
        tf.print("loss", loss, "of", steps)

    return step


def train(variables: list[tf.Variable], images: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = forward(variables, images)
    apply(variables, tape.gradient(loss, variables))


def loss_after_the_update() -> Any:
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        train(variables, images)
        return forward(variables, images)

    return step


def norm_after_the_update() -> Any:
    """Returns a step that returns the norms of one updated weight, and of all of them."""
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> Any:
        train(variables, images)
        return tf.norm(variables[0]), tf.linalg.global_norm(variables)

    return step


def metric_of_loss_and_gradients() -> Any:
    """Returns a step with one metric for the loss and the norm of all gradients."""
    variables, metric = weights(), tf.keras.metrics.Mean("both")

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        gradients = tape.gradient(loss, variables)
        metric.update_state(loss)
        metric.update_state(tf.linalg.global_norm(gradients))
        apply(variables, gradients)

    return step


def supported() -> Any:
    """Returns a step that can run as a pipeline."""
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        apply(variables, tape.gradient(loss, variables))

    return step


def reduced_by_horovod(reduction: str) -> Any:
    """Returns a step with a Horovod reduction that stages cannot replace."""
    variables = weights()
    options = {
        "compressed": {"compression": hvd.Compression.fp16},
        "greatest": {"op": hvd.Max},
    }

    def step(images: tf.Tensor, labels: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        if reduction in ("local", *options):
            tape = hvd.DistributedGradientTape(tape, **options.get(reduction, {}))
        if reduction == "local":
            tape.register_local_source(variables[1])
        gradients = tape.gradient(loss, variables)
        if reduction == "clipped":
            gradients = [hvd.allreduce(tf.clip_by_norm(grad, 1.0)) for grad in gradients]
        apply(variables, gradients)
        return hvd.allreduce(loss) if reduction == "loss" else loss

    return step


def no_gradient() -> Any:
    variables = weights()
    return lambda images, labels: forward(variables, images)
