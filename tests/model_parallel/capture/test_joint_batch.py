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
