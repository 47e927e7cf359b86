"""Gradients that a tape differentiates again."""

from collections.abc import Callable
from typing import Any

import models
import tensorflow as tf

from script_cases.common import (
    BRIEFLY,
    DTYPE,
    STEPS,
    Adversaries,
    Share,
    Wrap,
    batch,
    cases,
    compared,
    descend,
    hand_written,
    noise_of,
    optimized,
    part,
    train_steps,
)


@cases
def gradient_penalty() -> Any:
    """Differentiates by a tensor that is no variable, as in WGAN-GP."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = Adversaries()

        def step(real: Any, noise: Any) -> Any:
            with tf.GradientTape() as outer:
                fake = tf.nn.tanh(noise @ model.generator[0])
                between = (real + fake) / 2.0
                with tf.GradientTape() as inner:
                    inner.watch(between)
                    judged = model.judged(between)
                slopes = inner.gradient(judged, between)
                norms = tf.sqrt(tf.reduce_sum(slopes**2, axis=1) + 1e-6)
                loss = tf.reduce_mean(model.judged(fake)) - tf.reduce_mean(model.judged(real))
                loss += 10.0 * tf.reduce_mean((norms - 1.0) ** 2)
            descend(model.judge, outer.gradient(loss, model.judge), 0.01)

        stepping = wrap(step)
        for number in range(STEPS):
            stepping(*share((batch(number)[0], noise_of(number))))
        return model.variables, None

    return compared(train)


class Sharp(models.HandWritten):
    """Punishes the size of the gradient of its loss."""

    def step(self, inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = self.loss(inputs, labels)
            gradients = inner.gradient(loss, self.variables)
            loss += 0.1 * tf.add_n([tf.reduce_sum(gradient**2) for gradient in gradients])
        self.update(outer.gradient(loss, self.variables))


@cases
def penalty_on_the_gradient_of_all_data() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = Sharp(DTYPE, "sgd")
        stepping = wrap(model.step)
        train_steps(stepping, share)
        return model.variables, None

    return compared(train, **BRIEFLY, inner_gradients="average")


@cases
def penalty_on_rows_of_all_data() -> Any:
    """Rows of a sparse gradient, of which ranks have their own."""
    return penalty_on_rows(lambda rows: rows.values)


@cases
def penalty_on_added_rows_of_all_data() -> Any:
    return penalty_on_rows(tf.convert_to_tensor, sparse_as_dense="rows")


def penalty_on_rows(numbers: Callable[[Any], Any], **options: Any) -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        table = tf.Variable(tf.reshape(tf.range(48, dtype=DTYPE) / 48.0, [16, 3]), name="table")
        weights = tf.Variable(tf.ones([3, models.CLASSES], DTYPE) / 3.0, name="weights")
        both = [table, weights]

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    ids = tf.argmax(inputs[:, :4], 1) + 4 * tf.argmax(inputs[:, 4:8], 1)
                    logits = tf.gather(table, ids) @ weights
                    loss = models.cross_entropy(labels, logits * logits)
                rows, dense = inner.gradient(loss, both)
                loss += tf.reduce_sum(numbers(rows) ** 2) + tf.reduce_sum(dense**2)
            for variable, gradient in zip(both, outer.gradient(loss, both), strict=True):
                variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))

        train_steps(wrap(step), share)
        return both, None

    return compared(train, **BRIEFLY, inner_gradients="average", **options)


@cases
def adapting_to_a_task_of_each_rank() -> Any:
    """One process adapts to both tasks, one after the other."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written("sgd")

        def loss_with(weights: Any, inputs: Any, labels: Any) -> Any:
            hidden = tf.tanh(inputs @ weights[0] + weights[1])
            hidden = tf.tanh(hidden @ weights[2] + weights[3])
            return models.cross_entropy(labels, hidden @ weights[4] + weights[5])

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as outer:
                losses = []
                for first in range(0, len(labels), models.SHARD):
                    task = slice(first, first + models.SHARD)
                    with tf.GradientTape() as inner:
                        before = loss_with(model.variables, inputs[task], labels[task])
                    slopes = inner.gradient(before, model.variables)
                    adapted = [
                        v - 0.2 * slope for v, slope in zip(model.variables, slopes, strict=True)
                    ]
                    losses.append(loss_with(adapted, inputs[task][::-1], labels[task]))
                loss = tf.add_n(losses) / len(losses)
            model.update(outer.gradient(loss, model.variables))

        stepping = wrap(step)
        train_steps(stepping, share)
        return model.variables, None

    return compared(train, **BRIEFLY, inner_gradients="local")


@cases
def second_derivatives_undecided() -> Any:
    model = Sharp(DTYPE, "sgd")
    optimized()(model.step)(*part(batch(0)))
