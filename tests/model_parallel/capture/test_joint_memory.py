"""A joint batch that memory may not hold is found by what it needs."""

from unittest import mock

import tensorflow as tf

from tests.model_parallel import models
from tests.model_parallel.job import batches, build_model, trace
from tf_libra.model_parallel.capture import joint_memory
from tf_libra.model_parallel.capture.joint_memory import find_shortage, output_bytes
from tf_libra.model_parallel.capture.step_recorder import StepRecorder


def traced(size):
    [(images, labels)] = batches(1, size)
    recorder = StepRecorder(tf.function(build_model(models.mlp).step))
    return trace(recorder, images, labels, size)


def test_outputs_grow_with_the_batch_but_for_those_of_weights():
    small, medium, large = (output_bytes(traced(size)) for size in (8, 16, 24))
    assert 0 < small < medium and large - medium == medium - small


def test_shortage_names_both_sizes():
    graph = traced(8)
    assert find_shortage(graph) is None
    needed = output_bytes(graph)
    for available, is_short in ((needed, False), (needed - 1, True), (None, False)):
        with mock.patch.object(
            joint_memory, "available_bytes", lambda available=available: available
        ):
            reason = find_shortage(graph)
        assert (reason is not None) == is_short
        assert not is_short or reason.startswith("tensors of the joint batch")
