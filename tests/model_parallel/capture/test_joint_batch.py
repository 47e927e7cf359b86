"""Steps that one rank would compute otherwise than all ranks are found."""

import pytest
import tensorflow as tf

from tests.model_parallel import models
from tests.model_parallel.job import batches, build_model, trace
from tf_libra.model_parallel.capture.joint_batch import find_difference
from tf_libra.model_parallel.capture.step_recorder import StepRecorder


def difference(make):
    [(images, labels)] = batches(1, 4)
    recorder = StepRecorder(tf.function(build_model(make).step))
    return find_difference(trace(recorder, images, labels, 4))


@pytest.mark.parametrize("make", [models.mlp, models.embedded, models.counted, models.spectral])
def test_step_of_a_mean_over_examples_is_the_same(make):
    assert difference(make) is None


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (models.normalized, "moving_mean"),
        (models.running_mean, "batch statistics"),
        (models.dropping, "random"),
    ],
)
def test_statistics_and_draws_are_named(make, named):
    assert named in difference(make)


def masked(images, losses):
    mask = tf.cast(images[:, 0] > 0, losses.dtype)
    return tf.reduce_sum(mask * losses) / tf.reduce_sum(mask)


def selected(images, losses):
    return tf.reduce_mean(tf.boolean_mask(losses, images[:, 0] > 0))


def masked_by_keras(images, losses):
    mean = tf.keras.losses.MeanAbsoluteError()
    losses._keras_mask = images[:, 0] > 0
    return mean(tf.zeros_like(losses), losses)


def without_zero(images, losses):
    return tf.math.divide_no_nan(
        tf.reduce_sum(losses), tf.math.count_nonzero(images[:, 0], dtype=losses.dtype)
    )


def counted_by_shape(images, losses):
    return tf.reduce_sum(losses) / tf.cast(tf.shape(losses)[0], losses.dtype)


def normalized_per_example(images, losses):
    weights = images[:, :2] / (1e-3 + tf.reduce_sum(tf.abs(images[:, :2]), axis=1, keepdims=True))
    return tf.reduce_mean(losses * (2.0 + tf.reduce_sum(weights, axis=1)))


@pytest.mark.parametrize(
    ("mean", "is_same"),
    [
        (masked, False),
        (selected, False),
        (masked_by_keras, False),
        (without_zero, False),
        (counted_by_shape, True),
        (normalized_per_example, True),
    ],
)
def test_means_over_numbers_of_examples_that_differ_between_ranks_are_named(mean, is_same):
    [(images, _)] = batches(1, 4)
    flat = tf.reshape(images, [4, -1])
    weight = tf.Variable(tf.ones([flat.shape[1], 1]))

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = mean(images, tf.squeeze(images @ weight, 1) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    found = find_difference(trace(StepRecorder(step), flat, tf.zeros([4]), 4))
    assert found is None if is_same else "gradients are divided by" in found


def test_statistics_of_keras_2_are_no_metrics():
    def make():
        trained = models.mlp()
        inner, mean = (
            trained.call,
            tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.MEAN,
            ),
        )

        def calling(images):
            mean.assign(0.9 * mean + tf.reduce_mean(images))
            return inner(images)

        trained.call = calling
        return trained

    assert "batch statistics" in difference(make)


@pytest.mark.parametrize("call", [tf.print, lambda x: tf.py_function(lambda y: y, [x], tf.float32)])
def test_effects_outside_of_variables_are_named(call):
    def make():
        trained = models.mlp()
        inner = trained.call

        def calling(images):
            call(tf.constant(1.0))
            return inner(images)

        trained.call = calling
        return trained

    assert "only one rank" in difference(make)
