"""Bursts train to the weights of one process on the joint batch."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model_parallel.comparison import compare
from tests.model_parallel.job import batches, build_model, burst_layer_names, train_with_layout
from tests.model_parallel.models import BURSTS, EVERY
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.planning.burst.graph_reduction import reduce_graph
from tf_libra.model_parallel.runtime.burst_planner import flows

pytestmark = pytest.mark.usefixtures("cached_models")


def check_burst(model, num_devices, num_ranks, first_devices=None, batch=24):
    """Trains layers on the given numbers of ranks; the last number applies to all later layers."""
    steps = batches(2, batch)

    def layout(names):
        counts = [*num_devices, *num_devices[-1:] * len(names)]
        firsts = [*(first_devices or ()), *[0] * len(names)]
        ranks = [tuple(range(f, f + n)) for f, n in zip(firsts, counts, strict=False)]
        return Layout.for_layers(ranks[: len(names)], num_ranks)

    make = (EVERY | BURSTS)[model]
    ranks = train_with_layout(make, layout, num_ranks, 1, steps, has_branches=True)
    compare(model, ranks, 2, batch, 1)
    return ranks


# Batch normalization and other means depend on the examples that a rank computes together.
@pytest.mark.parametrize("model", sorted((EVERY | BURSTS).keys() - {"normalized", "running_mean"}))
def test_burst_layers_train_like_one_process(model):
    check_burst(model, (2, 1, 2, 1), 2)


@pytest.mark.parametrize("num_devices", [(4, 2, 1, 4), (1, 4, 2), (2, 2, 3, 1)])
def test_burst_on_four_ranks_trains_like_one_process(num_devices):
    """Some ranks have no layer, or numbers of ranks do not divide each other."""
    check_burst("convolutional", num_devices, 4)


def test_ops_that_begin_or_join_branches_are_layers_of_a_burst():
    """Branches can then be planned in parallel."""
    images, labels = batches(1, 4)[0]
    recorder = StepRecorder(tf.function(build_model(BURSTS["inception"]).step))
    traces = SizedTraces(recorder, ((images, labels), {}), 4, 4, has_branches=True)
    names = [layer.name for layer in traces.microbatch_graph.layers]
    assert sum("average_pooling" in name for name in names) == 2
    assert sum("concatenate" in name for name in names) == 2
    partition = StagePartition(traces.microbatch_graph, range(len(names)))
    reduce_graph(len(names), list(flows(partition, traces.axes(4))), names)
    assert burst_layer_names(BURSTS["vgg"]) == [*("conv2d", "conv2d_1", "conv2d_2", "conv2d_3"),
                                       *("dense", "dense_1", "dense_2")]  # fmt: skip


def test_parallel_branches_on_different_ranks_train_like_one_process():
    """The second layer is on other ranks than the third."""
    check_burst("branching", (4, 2, 1, 4), 4, first_devices=(0, 2))
    check_burst("branching", (2, 1, 1, 1), 2, first_devices=(0, 1))


@pytest.mark.parametrize(("model", "seed"), [("inception", 0), ("branching", 1), ("tied", 2)])
def test_burst_with_random_placement_trains_like_one_process(model, seed):
    """Each layer is on consecutive ranks, any of four."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, 5, 20)
    firsts = [int(generator.integers(0, 5 - count)) for count in counts]
    check_burst(model, counts.tolist(), 4, firsts)


def test_rank_without_a_layer_trains_like_one_process():
    ranks = check_burst("convolutional", (1,), 2)
    assert ranks[1].executor.task_spans == ()


def test_batch_normalization_on_one_rank_trains_like_one_process():
    """The other layers are on two ranks."""
    check_burst("normalized", (1, 1, 2), 2)
