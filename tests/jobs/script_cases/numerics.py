"""Loss scaling, half precision, and gradients that are not finite."""

from typing import Any

import models
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE

from script_cases.common import (
    BRIEFLY,
    LAST,
    STEPS,
    Share,
    Wrap,
    batch,
    cases,
    compared,
    descend,
    hand_written,
    optimized,
    part,
    train_steps,
    variable,
    whole,
)


@cases
def loss_scaling_by_hand() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written("sgd")

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                scaled = model.loss(inputs, labels) * 1024.0
            model.update([g / 1024.0 for g in tape.gradient(scaled, model.variables)])

        stepping = wrap(step)
        train_steps(stepping, share)
        return model.variables, None

    return compared(train)


@cases
def mixed_precision() -> Any:
    """Half-precision layers; a step that overflows on one rank lowers the scale on all."""

    def train(wrap: Wrap, share: Share) -> Any:
        tf.keras.utils.set_random_seed(5)
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [
                layers.Input((models.FEATURES,)),
                layers.Dense(8, activation="tanh", dtype="mixed_float16"),
                layers.Dense(models.CLASSES, dtype="float32"),
            ]
        )
        optimizer = tf.keras.optimizers.LossScaleOptimizer(
            tf.keras.optimizers.SGD(0.05), initial_scale=256.0, dynamic_growth_steps=4
        )

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = models.cross_entropy(labels, model(inputs, training=True))
                scaled = optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        stepping = wrap(step)
        for number in range(STEPS):
            inputs, labels = batch(number)
            inputs = inputs.numpy().astype("float32")
            if number == 3:
                inputs[-1] = 1e30  # of the last rank
            stepping(*share((tf.constant(inputs), labels)))
        return model.trainable_variables, float(tf.convert_to_tensor(optimizer.dynamic_scale))

    return compared(train)


@cases
def loss_scale_that_begins_too_high() -> Any:
    """One process computes each share's gradients apart, in half precision as the ranks do."""
    scales: list[float] = []

    def train(wrap: Wrap, share: Share) -> Any:
        tf.keras.utils.set_random_seed(5)
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [
                layers.Input((models.FEATURES,)),
                layers.Dense(8, activation="tanh", dtype="mixed_float16"),
                layers.Dense(models.CLASSES, dtype="mixed_float16"),
            ]
        )
        optimizer = tf.keras.optimizers.LossScaleOptimizer(
            tf.keras.optimizers.SGD(0.05), initial_scale=2.0**20, dynamic_growth_steps=3
        )
        shares = SIZE if share is whole else 1

        def step(inputs: Any, labels: Any) -> Any:
            found = []
            for x, y in zip(tf.split(inputs, shares), tf.split(labels, shares), strict=True):
                with tf.GradientTape() as tape:
                    outputs = tf.cast(model(x, training=True), tf.float32)
                    scaled = optimizer.scale_loss(models.cross_entropy(y, outputs))
                found.append(tape.gradient(scaled, model.trainable_variables))
            gradients = [tf.add_n(parts) / shares for parts in zip(*found, strict=True)]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        stepping = wrap(step)
        for number in range(2 * STEPS):
            inputs, labels = batch(number)
            stepping(*share((tf.cast(inputs, tf.float32), labels)))
            scales.append(float(tf.convert_to_tensor(optimizer.dynamic_scale)))
        return model.trainable_variables, scales

    return compared(train)


def not_finite(mode: str) -> Any:
    """One rank's input is NaN in one step, another's infinite in a later one."""
    bad = {3: (LAST, np.nan), 5: (0, np.inf)}

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()
        mean = tf.Variable(np.zeros(models.FEATURES), trainable=False, name="mean")
        calls = tf.Variable(0, trainable=False, name="calls")

        def step(inputs: Any, labels: Any) -> Any:
            calls.assign_add(1)
            if share is whole:
                mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(inputs))
            return model.step(inputs, labels)

        stepping = wrap(step)
        reported = []
        for number in range(2 * STEPS):
            joint = batch(number)
            if share is whole:
                if number not in bad:
                    stepping(*joint)
                continue
            inputs, labels = part(joint)
            rank, value = bad.get(number, (None, 0.0))
            if rank == RANK:
                inputs = inputs + value
            before = [v.numpy() for v in [*model.variables, calls]]
            try:
                loss = stepping(inputs, labels)
            except FloatingPointError as error:
                reported.append([number, str(error)])
            else:
                if number in bad:
                    reported.append([number, bool(np.isfinite(loss))])
            if number in bad:
                after = [v.numpy() for v in [*model.variables, calls]]
                assert all((a == b).all() for a, b in zip(after, before, strict=True))
        return [*model.variables, calls], reported

    return compared(train, **BRIEFLY, check_numerics=mode)


@cases
def not_finite_raises() -> Any:
    return not_finite("raise")


@cases
def not_finite_is_skipped() -> Any:
    return not_finite("skip")


@cases
def not_finite_in_an_embedding() -> Any:
    table = variable([8, 2], "table", 1)

    def step(words: Any, factor: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, words)) * factor
        descend([table], [tape.gradient(loss, table)])

    stepping = optimized(**BRIEFLY, check_numerics="raise")(step)
    stepping(tf.constant([1, 2]), tf.constant(1.0, tf.float64))
    factor = np.nan if RANK == LAST else 1.0
    stepping(tf.constant([1, 2]), tf.constant(factor, tf.float64))
