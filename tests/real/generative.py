"""Variational autoencoders, adversarial networks, diffusion, flows."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.real.running import By, Scripts, use_float64

SCRIPTS = Scripts()
NOISE = 4
bce = tf.nn.sigmoid_cross_entropy_with_logits


def images_and_noise(random: np.random.Generator) -> Any:
    return random.random(size=(8, 8, 8, 1)), random.normal(size=(8, NOISE))


def generator() -> Any:
    return keras.Sequential(
        [
            keras.Input((NOISE,)),
            layers.Dense(4 * 4 * 3, use_bias=False),
            layers.LeakyReLU(0.2),
            layers.Reshape((4, 4, 3)),
            layers.Conv2DTranspose(1, 4, 2, padding="same", activation="tanh"),
        ]
    )


def discriminator() -> Any:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(3, 4, 2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


@SCRIPTS
def variational_autoencoder(by: By) -> Any:
    """Reparameterized; reconstruction and divergence; metrics kept in the model."""
    use_float64()

    class VAE(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            inputs = keras.Input((8, 8, 1))
            x = layers.Conv2D(4, 3, 2, padding="same", activation="relu")(inputs)
            x = layers.Dense(8, activation="relu")(layers.Flatten()(x))
            self.encoder = keras.Model(inputs, [layers.Dense(NOISE)(x), layers.Dense(NOISE)(x)])
            latent = keras.Input((NOISE,))
            x = layers.Reshape((4, 4, 2))(layers.Dense(32, activation="relu")(latent))
            self.decoder = keras.Model(latent, layers.Conv2DTranspose(1, 3, 2, padding="same")(x))
            self.total = keras.metrics.Mean(name="total")

        def train_step(self, data: Any) -> Any:
            images, noise = data
            with tf.GradientTape() as tape:
                mean, log_variance = self.encoder(images)
                z = mean + tf.exp(0.5 * log_variance) * noise
                found = bce(images, self.decoder(z))
                divergence = -0.5 * (1 + log_variance - tf.square(mean) - tf.exp(log_variance))
                loss = tf.reduce_mean(tf.reduce_sum(found, axis=[1, 2, 3]))
                loss += tf.reduce_mean(tf.reduce_sum(divergence, axis=1))
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            self.total.update_state(loss)
            return {"loss": self.total.result()}

    model = VAE()
    model.compile(keras.optimizers.Adam(0.01))
    random = np.random.default_rng(1)
    by.fit(model, (random.random(size=(32, 8, 8, 1)), random.normal(size=(32, NOISE))), batch=4)
    return model.trainable_weights


@SCRIPTS
def dcgan_with_two_tapes(by: By) -> Any:
    """Two tapes side by side, two optimizers, one step."""
    use_float64()
    make, judge = generator(), discriminator()
    make_optimizer, judge_optimizer = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
    make_optimizer.build(make.trainable_variables)
    judge_optimizer.build(judge.trainable_variables)

    @by.optimize()
    @tf.function
    def train_step(images: Any, noise: Any) -> Any:
        with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
            fake = make(noise, training=True)
            real_out, fake_out = judge(images, training=True), judge(fake, training=True)
            gen_loss = tf.reduce_mean(bce(tf.ones_like(fake_out), fake_out))
            disc_loss = tf.reduce_mean(bce(tf.ones_like(real_out), real_out))
            disc_loss += tf.reduce_mean(bce(tf.zeros_like(fake_out), fake_out))
        gen_grads = gen_tape.gradient(gen_loss, make.trainable_variables)
        disc_grads = disc_tape.gradient(disc_loss, judge.trainable_variables)
        make_optimizer.apply_gradients(zip(gen_grads, make.trainable_variables, strict=True))
        judge_optimizer.apply_gradients(zip(disc_grads, judge.trainable_variables, strict=True))
        return gen_loss, disc_loss

    for images, noise in by.batches(5, images_and_noise):
        train_step(images, noise)
    return make.trainable_variables + judge.trainable_variables


@SCRIPTS
def gan_by_fit(by: By) -> Any:
    """Keras' way: `compile` with two optimizers, a `train_step` that trains one, then the other."""
    use_float64()

    class GAN(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.make, self.judge = generator(), discriminator()

        def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
            super().compile(optimizer=g_optimizer)
            self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

        def train_step(self, data: Any) -> Any:
            images, noise = data
            fake = self.make(noise)
            both = tf.concat([fake, images], axis=0)
            labels = tf.concat(
                [tf.ones([tf.shape(fake)[0], 1]), tf.zeros([tf.shape(images)[0], 1])], axis=0
            )
            labels = tf.cast(labels, both.dtype)
            with tf.GradientTape() as tape:
                d_loss = tf.reduce_mean(bce(labels, self.judge(both)))
            gradients = tape.gradient(d_loss, self.judge.trainable_weights)
            self.d_optimizer.apply_gradients(
                zip(gradients, self.judge.trainable_weights, strict=True)
            )
            with tf.GradientTape() as tape:
                out = self.judge(self.make(noise))
                g_loss = tf.reduce_mean(bce(tf.zeros_like(out), out))
            gradients = tape.gradient(g_loss, self.make.trainable_weights)
            self.g_optimizer.apply_gradients(
                zip(gradients, self.make.trainable_weights, strict=True)
            )
            return {"d_loss": d_loss, "g_loss": g_loss}

    model = GAN()
    model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))
    random = np.random.default_rng(1)
    by.fit(model, (random.random(size=(32, 8, 8, 1)), random.normal(size=(32, NOISE))), batch=4)
    return model.trainable_weights


@SCRIPTS
def wasserstein_with_gradient_penalty(by: By) -> Any:
    """The critic's slope between real and made images is taken by an inner tape."""
    use_float64()
    make, judge = generator(), discriminator()
    make_optimizer, judge_optimizer = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
    make_optimizer.build(make.trainable_variables)
    judge_optimizer.build(judge.trainable_variables)

    @by.optimize()
    @tf.function
    def train_step(images: Any, noise: Any, mixing: Any) -> Any:
        with tf.GradientTape() as tape:
            fake = make(noise, training=True)
            cost = tf.reduce_mean(judge(fake)) - tf.reduce_mean(judge(images))
            between = images + mixing * (fake - images)
            with tf.GradientTape() as slopes:
                slopes.watch(between)
                found = judge(between, training=True)
            norm = tf.sqrt(
                tf.reduce_sum(tf.square(slopes.gradient(found, [between])[0]), axis=[1, 2, 3])
            )
            loss = cost + 10.0 * tf.reduce_mean((norm - 1.0) ** 2)
        gradients = tape.gradient(loss, judge.trainable_variables)
        judge_optimizer.apply_gradients(zip(gradients, judge.trainable_variables, strict=True))
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(judge(make(noise, training=True)))
        gradients = tape.gradient(loss, make.trainable_variables)
        make_optimizer.apply_gradients(zip(gradients, make.trainable_variables, strict=True))
        return cost

    def drawn(random: np.random.Generator) -> Any:
        return (*images_and_noise(random), random.random(size=(8, 1, 1, 1)))

    for images, noise, mixing in by.batches(5, drawn):
        train_step(images, noise, mixing)
    # The last bias is in both terms of the cost, and cancels out but for rounding.
    return make.trainable_variables + judge.trainable_variables[:-1]


@SCRIPTS
def cycle_gan(by: By) -> Any:
    """A persistent tape with four calls of `gradient`, four optimizers."""
    use_float64()

    def image_to_image() -> Any:
        return keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(3, 3, padding="same", activation="tanh"),
                layers.Conv2D(1, 3, padding="same", activation="tanh"),
            ]
        )

    networks = [image_to_image(), image_to_image(), discriminator(), discriminator()]
    optimizers = [keras.optimizers.SGD(0.1, momentum=0.5) for _ in networks]
    for optimizer, network in zip(optimizers, networks, strict=True):
        optimizer.build(network.trainable_variables)
    to_y, to_x, judge_x, judge_y = networks

    @by.optimize()
    @tf.function
    def train_step(real_x: Any, real_y: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            fake_y, fake_x = to_y(real_x, training=True), to_x(real_y, training=True)
            cycle = tf.reduce_mean(tf.abs(real_x - to_x(fake_y))) + tf.reduce_mean(
                tf.abs(real_y - to_y(fake_x))
            )
            judged = [judge_x(real_x), judge_x(fake_x), judge_y(real_y), judge_y(fake_y)]
            ones, zeros = tf.ones_like(judged[0]), tf.zeros_like(judged[0])
            losses = [
                tf.reduce_mean(bce(ones, judged[3])) + 2.0 * cycle,
                tf.reduce_mean(bce(ones, judged[1])) + 2.0 * cycle,
                tf.reduce_mean(bce(ones, judged[0]) + bce(zeros, judged[1])),
                tf.reduce_mean(bce(ones, judged[2]) + bce(zeros, judged[3])),
            ]
        gradients = [
            tape.gradient(loss, network.trainable_variables)
            for loss, network in zip(losses, networks, strict=True)
        ]
        for optimizer, network, grads in zip(optimizers, networks, gradients, strict=True):
            optimizer.apply_gradients(zip(grads, network.trainable_variables, strict=True))
        return losses

    def pairs(random: np.random.Generator) -> Any:
        images = random.random(size=(2, 4, 8, 8, 1))
        return images[0], images[1]

    for real_x, real_y in by.batches(5, pairs):
        train_step(real_x, real_y)
    return [v for network in networks for v in network.trainable_variables]


@SCRIPTS
def two_networks_two_steps(by: By) -> Any:
    """Each network has a decorated step of its own, with other strategies."""
    use_float64()
    make, judge = generator(), discriminator()
    make_optimizer, judge_optimizer = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)

    @by.optimize(strategy="mg-wfbp")
    @tf.function
    def train_discriminator(images: Any, noise: Any) -> Any:
        with tf.GradientTape() as tape:
            real, fake = judge(images, training=True), judge(make(noise), training=True)
            loss = tf.reduce_mean(tf.nn.relu(1.0 - real)) + tf.reduce_mean(tf.nn.relu(1.0 + fake))
        gradients = tape.gradient(loss, judge.trainable_variables)
        judge_optimizer.apply_gradients(zip(gradients, judge.trainable_variables, strict=True))
        return loss

    @by.optimize(strategy="libra")
    @tf.function
    def train_generator(noise: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(judge(make(noise, training=True)))
        gradients = tape.gradient(loss, make.trainable_variables)
        make_optimizer.apply_gradients(zip(gradients, make.trainable_variables, strict=True))
        return loss

    for images, noise in by.batches(7, images_and_noise):
        train_discriminator(images, noise)
        train_generator(noise)
    # The last bias is in both terms of the hinge, and cancels out.
    return make.trainable_variables + judge.trainable_variables[:-1]


@SCRIPTS
def denoising_diffusion(by: By) -> Any:
    """Predicts the noise that was added; an average of the weights is kept, too."""
    use_float64()
    inputs, when = keras.Input((8, 8, 1)), keras.Input((1,))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    x = layers.Activation("swish")(x + layers.Reshape((1, 1, 4))(layers.Dense(4)(when)))
    network = keras.Model([inputs, when], layers.Conv2D(1, 3, padding="same")(x))
    average = keras.models.clone_model(network)
    average.set_weights(network.get_weights())
    average.trainable = False
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(network.trainable_weights)

    @by.optimize()
    @tf.function
    def train_step(images: Any, noise: Any, times: Any) -> Any:
        angle = times[:, :, None, None] * 1.5
        noisy = tf.cos(angle) * images + tf.sin(angle) * noise
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(noise - network([noisy, times], training=True)))
        gradients = tape.gradient(loss, network.trainable_weights)
        optimizer.apply_gradients(zip(gradients, network.trainable_weights, strict=True))
        for weight, averaged in zip(network.weights, average.weights, strict=True):
            averaged.assign(0.9 * averaged + 0.1 * weight)
        return loss

    def drawn(random: np.random.Generator) -> Any:
        images = random.normal(size=(2, 8, 8, 8, 1))
        return images[0], images[1], random.random(size=(8, 1))

    for images, noise, times in by.batches(5, drawn):
        train_step(images, noise, times)
    return network.trainable_weights + average.weights


@SCRIPTS
def coupling_flow(by: By) -> Any:
    """Affine coupling layers and the log-determinant of their Jacobian."""
    use_float64()
    networks = [
        keras.Sequential([keras.Input((2,)), layers.Dense(8, activation="relu"), layers.Dense(4)])
        for _ in range(3)
    ]
    variables = [v for network in networks for v in network.trainable_variables]
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(variables)

    @by.optimize()
    @tf.function
    def train_step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            log_determinant = tf.zeros([tf.shape(x)[0]], tf.float64)
            for network in networks:
                left, right = tf.split(x, 2, axis=1)
                scale, shift = tf.split(network(left), 2, axis=1)
                scale = tf.tanh(scale)
                x = tf.concat([right * tf.exp(scale) + shift, left], axis=1)
                log_determinant += tf.reduce_sum(scale, axis=1)
            loss = tf.reduce_mean(0.5 * tf.reduce_sum(x**2, axis=1) - log_determinant)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    for x in by.batches(5, lambda random: random.normal(size=(8, 4))):
        train_step(x)
    return variables
