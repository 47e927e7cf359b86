"""Gradients that stages compute once per step, for the examples of all microbatches."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model_parallel.comparison import compare
from tests.model_parallel.job import batches, build_model, train
from tests.model_parallel.models import EVERY
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition import deferred_gradients
from tf_libra.model_parallel.partition.deferred_gradients import (
    deferred_tensors,
    find_deferred_gradients,
    without_deferred,
)
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.profiling.layer_benchmark import measured_layers

pytestmark = pytest.mark.usefixtures("cached_models")


def deep_traces(num_examples: int) -> SizedTraces:
    trained = build_model(EVERY["deep"])
    given = (batches(1, num_examples)[0], {})
    return SizedTraces(StepRecorder(tf.function(trained.step)), given, num_examples, num_examples)


@pytest.mark.parametrize(
    ("model", "starts", "replicas", "num_microbatches", "num_groups"),
    [
        ("convolutional", (0, 1), (2, 1), 4, 3),
        ("convolutional", (0,), (2,), 3, 0),
        ("transformer", (0, 2), (1, 1), 3, 0),
        ("conditional", (0, 1, 2), (1, 1, 1), 4, 0),
        ("tied", (0, 2), (1, 2), 2, 0),
        ("recurrent", (0, 1), (1, 1), 2, 0),
    ],
)
def test_deferred_gradients_train_like_one_process(
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    starts: tuple[int, ...],
    replicas: tuple[int, ...],
    num_microbatches: int,
    num_groups: int,
) -> None:
    """All gradients that contract two tensors are deferred, whatever their sizes."""
    monkeypatch.setattr(deferred_gradients, "_num_bytes", lambda _: 0)
    steps = batches(2, 24)
    ranks = train(EVERY[model], starts, replicas, num_microbatches, steps, num_groups)
    compare(model, ranks, 2, 24, num_microbatches)
    deferring = {
        span.stage
        for rank in ranks
        for span in rank.executor.task_spans
        if span.kind == "gradients"
    }
    assert deferring if model == "recurrent" else deferring == {*range(len(starts))}


@pytest.mark.parametrize("size", [2, 3, 7])
def test_gradients_are_deferred_if_their_tensors_are_no_larger(size: int) -> None:
    """Weights are of 64 x 12, four times 12 x 12, and 12 x 10 elements."""
    partition = deep_traces(size).partition([0])
    found = find_deferred_gradients(partition, 0, 3)
    variables = partition.graph.recording.variables
    shapes = [(64, 12), *[(12, 12)] * 4, (12, 10)]
    expected = [list(shape) for shape in shapes if 3 * size * sum(shape) <= np.prod(shape)]
    deferred = [variables[each.reduction].shape.as_list() for each in found]
    assert sorted(deferred) == sorted(expected)
    subgraph = partition.subgraphs[partition.backward_phase(0)]
    others = without_deferred(subgraph, found)
    assert {*others.outputs} >= {*deferred_tensors(found)}
    assert len(others.ops) == len(subgraph.ops) - sum(len(each.ops) for each in found)
    assert without_deferred(subgraph, ()) == subgraph


def test_a_sum_of_gradients_is_not_deferred() -> None:
    """The table of a language model is its first and its last layer."""
    trained = build_model(EVERY["tied"])
    given = (batches(1, 1)[0], {})
    partition = SizedTraces(StepRecorder(tf.function(trained.step)), given, 1, 1).partition([0])
    variables = partition.graph.recording.variables
    found = find_deferred_gradients(partition, 0, 1)
    assert {tuple(variables[each.reduction].shape) for each in found} == {(6, 6)}


@pytest.mark.parametrize(("num_microbatches", "defers"), [(2, False), (1, True), (1, False)])
def test_deferred_gradients_are_measured_apart(num_microbatches: int, defers: bool) -> None:
    traces = deep_traces(2)
    layers = measured_layers(
        traces, (batches(1, 2)[0], {}), num_microbatches, repeats=1, defers=defers
    )
    found: set[int] = set()
    if defers or num_microbatches > 1:
        partition = traces.layer_partition
        found = {
            stage
            for stage in range(partition.num_stages)
            if find_deferred_gradients(partition, stage, num_microbatches)
        }
        assert found
    assert {*np.flatnonzero(layers.deferred_seconds)} == found


@pytest.mark.parametrize(
    ("equation", "shapes", "is_contraction"),
    [
        ("ab,cb->ac", ([2, 3], [4, 3]), True),
        ("ab,bb->a", ([2, 3], [3, 3]), False),
        ("bb,ab->a", ([3, 3], [2, 3]), False),
        ("ab,ac->abc", ([2, 3], [2, 4]), False),
    ],
)
def test_einsum_that_sums_over_an_axis_of_both_tensors_is_a_contraction(
    equation: str, shapes: tuple[list[int], list[int]], is_contraction: bool
) -> None:
    with tf.Graph().as_default():
        inputs = [tf.compat.v1.placeholder(tf.float32, shape) for shape in shapes]
        op = tf.raw_ops.Einsum(inputs=inputs, equation=equation).op
        assert (deferred_gradients._contraction(op) is not None) is is_contraction
