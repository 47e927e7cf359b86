"""Gradients that a step accumulates, clips or assembles from parts."""

from collections.abc import Callable
from typing import Any

import models
import tensorflow as tf

from script_cases.common import (
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
)


def accumulating(loop: Callable[[], Any]) -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()

        def step(inputs: Any, labels: Any) -> Any:
            total = [tf.zeros_like(v) for v in model.variables]
            for index in loop():
                with tf.GradientTape() as tape:
                    micro = tf.reshape(inputs, [4, -1, models.FEATURES])[index]
                    loss = model.loss(micro, tf.reshape(labels, [4, -1])[index])
                gradients = tape.gradient(loss, model.variables)
                total = [t + g / 4 for t, g in zip(total, gradients, strict=True)]
            model.update(total)

        stepping = wrap(step)
        for number in range(STEPS):
            # The alone process cuts its joint batch otherwise; the mean over all is the same.
            stepping(*share(batch(number)))
        return model.variables, None

    return compared(train)


@cases
def accumulation_in_the_step() -> Any:
    return accumulating(lambda: range(4))


@cases
def accumulation_in_a_loop_of_the_graph() -> Any:
    return accumulating(lambda: tf.range(4))


@cases
def accumulation_over_calls() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written("sgd")
        sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.variables]
        count = tf.Variable(0, trainable=False, dtype=tf.int64)

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.loss(inputs, labels)
            gradients = tape.gradient(loss, model.variables)
            for total, gradient in zip(sums, gradients, strict=True):
                total.assign_add(gradient)
            if count.assign_add(1) % 3 == 0:
                model.update([total / 3 for total in sums])
                for total in sums:
                    total.assign(tf.zeros_like(total))
            return loss

        stepping = wrap(step)
        for number in range(2 * STEPS + 1):
            stepping(*share(batch(number)))
        return [*model.variables, *sums], None

    return compared(train)


@cases
def clipping_after_averaging() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written("sgd")

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.loss(inputs, labels)
            clipped, norm = tf.clip_by_global_norm(tape.gradient(loss, model.variables), 0.05)
            model.update(clipped)
            return norm

        stepping = wrap(step)
        norms = [float(stepping(*share(batch(number)))) for number in range(STEPS)]
        return model.variables, min(norms)

    return compared(train)


@cases
def frozen_and_shared_weights() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        shared = variable([models.FEATURES, models.FEATURES], "shared", 1)
        head = variable([models.FEATURES, models.CLASSES], "head", 2)
        frozen = variable([models.FEATURES, models.FEATURES], "frozen", 3, trainable=False)

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                hidden = tf.tanh(tf.tanh(tf.tanh(inputs @ shared) @ frozen) @ shared)
                loss = models.cross_entropy(labels, hidden @ head)
                loss += 0.01 * tf.reduce_sum(tf.matmul(shared, shared, transpose_b=True) ** 2)
            descend([shared, head], tape.gradient(loss, [shared, head]))

        stepping = wrap(step)
        train_steps(stepping, share)
        return [shared, head, frozen], None

    return compared(train)


@cases
def parts_of_a_weight() -> Any:
    """The gradient is taken by what it was cut into, and put together again."""

    def train(wrap: Wrap, share: Share) -> Any:
        weight = variable([models.FEATURES, 2 * models.CLASSES], "joint", 1)

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                parts = tf.split(weight, 2, axis=1)
                tape.watch(parts)
                loss = models.cross_entropy(labels, tf.tanh(inputs @ parts[0]) + inputs @ parts[1])
            descend([weight], [tf.concat(tape.gradient(loss, parts), axis=1)])

        train_steps(wrap(step), share)
        return [weight], None

    return compared(train)


@cases
def gradients_by_what_a_function_was_given() -> Any:
    model = hand_written("sgd")

    @tf.function
    def slopes(weight: Any, inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weight)
            loss = tf.reduce_sum((inputs @ weight) ** 2)
        return tape.gradient(loss, weight)

    def step(inputs: Any, labels: Any) -> Any:
        weight = model.variables[0]
        descend([weight], [slopes(weight.read_value(), inputs)])

    optimized()(step)(*part(batch(0)))
