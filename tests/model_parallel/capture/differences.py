"""Differences of a step on one rank to the same step on all ranks, by model or step."""

import tensorflow as tf

from tests.model_parallel.job import batches, build_model
from tf_libra.model_parallel.capture.joint_batch import find_differences
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.sized_traces import SizedTraces


def traces_of(step, images, labels):
    return SizedTraces(StepRecorder(step), ((images, labels), {}), 4, 4)


def difference_of(step, images, labels, allow=()):
    traces = traces_of(step, images, labels)
    return find_differences(traces.microbatch_graph, traces.other_graph, allow).reason


def difference(make, allow=()):
    return difference_of(tf.function(build_model(make).step), *batches(1, 4)[0], allow)
