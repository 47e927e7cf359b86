"""Batch sizes for which a step is traced, and how often."""

import collections

import pytest
import tensorflow as tf

from tests.model_parallel.job import batches, build_model, trace
from tests.model_parallel.models import EVERY
from tests.model_parallel.trained_model import from_keras
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.profiling.layer_benchmark import measured_layers


def count_traces(step):
    """Returns the step as a `tf.function`, and a counter of its traces by batch size."""
    counts = collections.Counter()

    def counted(images, labels):
        counts[images.shape[0]] += 1
        return step(images, labels)

    return tf.function(counted), counts


def test_step_is_traced_once_for_a_microbatch_and_once_for_a_shard():
    """Traces of large models take long, so no size is traced that no rank computes."""
    step, counts = count_traces(build_model(EVERY["deep"]).step)
    arguments = (batches(1, 8)[0], {})
    traces = SizedTraces(StepRecorder(step), arguments, 8, 8, num_ranks=2)
    assert measured_layers(traces, arguments, 2).input_shares == (0.5, 1.0)
    for size in (4, 8):
        assert traces.axes(size).batch_axis(f"{traces.microbatch_graph.arguments[0]}:0") == 0
    assert counts == {8: 1, 4: 1}


@pytest.mark.parametrize("num_ranks", [1, 3, 8])
def test_step_without_a_usable_shard_is_traced_for_twice_a_microbatch(num_ranks):
    """There is no shard, or one of a single example, which shows no batch axis."""
    step, counts = count_traces(build_model(EVERY["deep"]).step)
    arguments = (batches(1, 8)[0], {})
    traces = SizedTraces(StepRecorder(step), arguments, 8, 8, num_ranks=num_ranks)
    assert traces.axes(8).batch_axis(f"{traces.microbatch_graph.arguments[0]}:0") == 0
    assert counts == {8: 1, 16: 1}


@pytest.mark.parametrize("behaviour", ["raises", "computes other ops"])
def test_step_that_differs_for_a_shard_is_traced_for_twice_a_microbatch(behaviour):
    """Stages can still run whole microbatches."""
    trained = build_model(EVERY["deep"])

    def step(images, labels):
        if images.shape[0] < 8:
            if behaviour == "raises":
                raise TypeError("eight at least")
            images = 2.0 * images
        return trained.step(images, labels)

    function, counts = count_traces(step)
    traces = SizedTraces(StepRecorder(function), (batches(1, 8)[0], {}), 8, 8, num_ranks=2)
    assert traces.axes(8).batch_axis(f"{traces.microbatch_graph.arguments[0]}:0") == 0
    assert counts[16] == 1
    traces.check_update()


def test_state_that_a_first_trace_builds_causes_no_second_trace_of_a_shard():
    trained = EVERY["convolutional"]()
    step, counts = count_traces(trained.step)
    traces = SizedTraces(StepRecorder(step), (batches(1, 8)[0], {}), 8, 8, num_ranks=2)
    traces.check_update()
    assert counts[4] == 1


def deepest():
    """Returns a Keras MLP of 32 layers."""
    keras, layers = tf.keras, tf.keras.layers
    dense = [layers.Dense(12, activation="tanh") for _ in range(31)]
    model = keras.Sequential([layers.Input([8, 8, 1]), layers.Flatten(), *dense, layers.Dense(10)])
    return from_keras(model, keras.optimizers.SGD(0.1))


def test_mlp_of_32_layers_is_cut_into_all_layers():
    images, labels = batches(1, 8)[0]
    graph = trace(StepRecorder(tf.function(build_model(deepest).step)), images, labels, 8)
    assert len(graph.layers) == 32
