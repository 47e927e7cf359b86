"""For which batches a step is traced, and how often."""

import collections

import pytest
import tensorflow as tf

from tests.model_parallel.job import batches, fresh
from tests.model_parallel.models import EVERY
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.sized_traces import Traces
from tf_libra.model_parallel.planning.layer_benchmark import measured_layers


def counted(step):
    """The step, and how often it was traced for how many samples."""
    sizes = collections.Counter()

    def traced(images, labels):
        sizes[images.shape[0]] += 1
        return step(images, labels)

    return tf.function(traced), sizes


def test_a_step_is_traced_for_a_microbatch_and_a_rank_s_share_of_it():
    """And for no size that nothing runs: a trace of a large model takes long."""
    step, sizes = counted(fresh(EVERY["deep"]).step)
    given = (batches(1, 8)[0], {})
    traces = Traces(StepRecorder(step), given, 8, 8, num_ranks=2)
    assert measured_layers(traces, given, 2).input_shares == (0.5, 1.0)
    for size in (4, 8):
        assert traces.axes(size).batch_axis(f"{traces.whole.arguments[0]}:0") == 0
    assert sizes == {8: 1, 4: 1}


@pytest.mark.parametrize("num_ranks", [1, 3, 8])
def test_where_a_share_is_no_other_batch_a_step_is_traced_for_twice_a_microbatch(num_ranks):
    """No share, or one sample, which no axis shows."""
    step, sizes = counted(fresh(EVERY["deep"]).step)
    traces = Traces(StepRecorder(step), (batches(1, 8)[0], {}), 8, 8, num_ranks=num_ranks)
    assert traces.axes(8).batch_axis(f"{traces.whole.arguments[0]}:0") == 0
    assert sizes == {8: 1, 16: 1}


@pytest.mark.parametrize("says", ["raises", "computes"])
def test_a_step_may_be_another_for_a_share(says):
    """The step still runs in stages, for whole microbatches."""
    trained = fresh(EVERY["deep"])

    def step(images, labels):
        if images.shape[0] < 8:
            if says == "raises":
                raise TypeError("eight at least")
            images = 2.0 * images
        return trained.step(images, labels)

    function, sizes = counted(step)
    traces = Traces(StepRecorder(function), (batches(1, 8)[0], {}), 8, 8, num_ranks=2)
    assert traces.axes(8).batch_axis(f"{traces.whole.arguments[0]}:0") == 0
    assert sizes[16] == 1
    traces.check_update()


def test_what_a_first_trace_builds_is_not_traced_again_for_the_other_size():
    trained = EVERY["convolutional"]()
    step, sizes = counted(trained.step)
    traces = Traces(StepRecorder(step), (batches(1, 8)[0], {}), 8, 8, num_ranks=2)
    traces.check_update()
    assert sizes[4] == 1
