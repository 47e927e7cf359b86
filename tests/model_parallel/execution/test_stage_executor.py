"""Stages train to the weights of one process that accumulates the same microbatches."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.model_parallel.comparison import assert_close, check, check_variables, read
from tests.model_parallel.job import (
    batches,
    build_model,
    cached_model,
    make_plan,
    run_together,
    trace,
    train,
)
from tests.model_parallel.models import COUNTED, EVERY
from tests.model_parallel.trained_model import Trained
from tf_libra.capture.variables import plain
from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.update_phase import UpdatePhase

pytestmark = pytest.mark.usefixtures("cached_models")
SIGNATURE = [tf.TensorSpec([None, 8, 8, 1]), tf.TensorSpec([None], tf.int32)]


@pytest.mark.parametrize("model", EVERY)
def test_pipeline_of_three_stages_trains_like_one_process(model):
    check(model, (0, 1, 2), (1, 1, 1), 4)


@pytest.mark.parametrize(
    ("starts", "replicas", "num_microbatches"),
    [((0,), (2,), 3), ((0, 2), (2, 1), 2), ((0, 1), (1, 2), 4), ((0, 2, 3), (2, 2, 1), 1)],
)
def test_stages_with_replicas_train_like_one_process(starts, replicas, num_microbatches):
    """The layers have weights of all sizes, and the update takes the norm of all gradients."""
    batch = 24 if sum(replicas) != 5 else 40
    check("convolutional", starts, replicas, num_microbatches, batch=batch)


@pytest.mark.parametrize(("starts", "replicas"), [((0,), (2,)), ((0, 2), (1, 3)), ((0, 1), (3, 2))])
def test_metrics_cover_the_examples_of_all_replicas(starts, replicas):
    """Metrics are sums, ratios with other denominators on each replica, and functions of these."""
    batch = 24 if sum(replicas) != 5 else 60
    check("counted", starts, replicas, 2, batch=batch)


@pytest.mark.parametrize(
    ("model", "starts", "replicas"),
    [("counted", (0, 2), (1, 2)), ("convolutional", (0, 1), (2, 1))],
)
def test_evaluation_runs_forward_and_trains_no_variable(model, starts, replicas):
    """Results of the evaluation cover the joint batch."""
    make, [(images, labels)] = (EVERY | COUNTED)[model], batches(1, 12)
    alone = cached_model(make, -1).trained
    expected = alone.flagged(images, labels, False)
    models = [cached_model(make, number) for number in range(3)]
    recorder = StepRecorder(tf.function(models[0].trained.flagged))
    training = SizedTraces(recorder, ((images, labels), {}), 4, 6, num_ranks=3)
    given = ((images, labels), {"training": False})
    traces = SizedTraces(recorder, given, 4, 6, num_ranks=3, trained=training.microbatch_graph)
    traces.check_same_layers(training)
    names = [layer.name for layer in traces.microbatch_graph.layers]
    layout = Layout.from_pipeline_plan(make_plan(names, starts, replicas, 2)).forward_only()
    for rank in run_together(models, traces, layout, [(images, labels)]):
        assert {span.kind for span in rank.executor.task_spans} == {"forward"}
        [result] = rank.results
        assert result.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(result[name], value)
        for variable, wanted in zip(rank.trained.variables, alone.variables, strict=True):
            np.testing.assert_array_equal(read(variable), read(wanted))


def test_metrics_of_other_values_than_sums_are_averaged():
    """The executor lists them by the variables that they write."""
    steps = batches(1, 24)
    averages = {"mixed": {"mixed/total", "mixed/count"}, "greatest": {"greatest/value"}}
    for model, averaged in (averages | {"counted": set()}).items():
        ranks = train(COUNTED[model], (0, 2), (1, 2), 2, steps)
        for rank in ranks:
            assert {
                name for names in rank.executor.averaged_metrics.values() for name in names
            } == averaged
    whole = train(COUNTED["mixed"], (0, 2), (2, 1), 2, steps)
    assert not any(rank.executor.averaged_metrics for rank in whole)


@pytest.mark.parametrize("model", ["dropping_twice", "iterated", "running_mean"])
def test_state_of_no_metric_is_not_reported_as_averaged(model):
    """The state is read after microbatches have written it, as the variables of metrics are."""
    ranks = train(EVERY[model], (0, 1), (1, 2), 2, batches(1, 36))
    assert not any(rank.executor.averaged_metrics for rank in ranks)


class Counting(Trained):
    """A step that returns the sum of labels and the number of microbatches so far."""

    def step(self, images: Any, labels: Any) -> dict[str, Any]:
        seen, calls = self.state
        with tf.GradientTape() as tape:
            loss = self.loss(labels, self.call(images))
            calls.assign_add(1.0)
            loss = loss / calls * calls
        seen.assign_add(tf.reduce_sum(labels))
        gradients = tape.gradient(loss, self.variables)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return {"loss": loss, "seen": seen.read_value(), "calls": calls.read_value()}


def counting() -> Trained:
    return Counting(**vars(EVERY["deep"]()) | {"state": (tf.Variable(0), tf.Variable(0.0))})


@pytest.mark.parametrize("replicas", [(1, 1), (1, 2)])
def test_counter_of_microbatches_is_returned_as_the_last_value(replicas):
    """Replicas have equal counts, which are not added, and are not reported as averaged."""
    joint = batches(2, 24)
    seen = np.cumsum([int(tf.reduce_sum(labels)) for _, labels in joint])
    for rank in train(counting, (0, 2), replicas, 2, joint):
        assert [int(result["seen"]) for result in rank.results] == seen.tolist()
        assert [float(result["calls"]) for result in rank.results] == [2.0, 4.0]
        assert not rank.executor.averaged_metrics


def test_last_stage_without_a_layer_end_trains_like_one_process():
    """Its backward computation has no inputs from other stages."""
    check("transformer", (0, 3), (2, 1), 2)


@pytest.mark.parametrize(
    ("starts", "replicas", "num_microbatches"),
    [((0,), (2,), 3), ((0,), (2,), 1), ((0, 2), (2, 1), 2), ((0, 1, 3), (1, 2, 2), 2)],
)
def test_gradient_groups_within_the_backward_computation_train_like_one_process(
    starts, replicas, num_microbatches
):
    """Cases include stages with accumulated microbatches, and earlier stages that wait."""
    batch = 24 if sum(replicas) != 5 else 40
    check("convolutional", starts, replicas, num_microbatches, batch=batch, num_groups=3)


def test_gradient_that_is_not_finite_prevents_the_update_of_all_stages():
    """The loss scale is halved on every rank."""
    steps = batches(4, 24)
    steps[2] = (tf.where(steps[2][0] > 2, np.inf, steps[2][0]), steps[2][1])
    alone = cached_model(EVERY["conditional"], -1).trained
    for step in steps:
        alone.accumulated(*step, 4)
    ranks = train(EVERY["conditional"], (0, 1, 2), (1, 2, 1), 4, steps)
    check_variables(ranks, {str(i): variable for i, variable in enumerate(alone.variables)})
    for rank in ranks:
        own, expected = rank.trained.optimizer, alone.optimizer
        assert read(own.dynamic_scale) == read(expected.dynamic_scale) == 8 * 2 / 2
        assert read(own.iterations) == read(expected.iterations)


@pytest.mark.parametrize(("replicas", "num_microbatches"), [((2, 1), 3), ((1, 2), 1)])
def test_spectral_normalization_advances_with_every_microbatch(replicas, num_microbatches):
    """Every replica continues from the updated weights."""
    check("spectral", (0, 2), replicas, num_microbatches, batch=36)


def test_tensor_without_batch_axis_is_sent_to_replicas():
    """The embedding table of a language model crosses all cuts, and its gradient returns."""
    check("tied", (0, 2), (1, 2), 2)


def test_integers_without_batch_axis_are_received_from_one_replica():
    check("permuted", (0, 1), (2, 1), 2)


@pytest.mark.parametrize(
    ("model", "starts", "replicas"),
    [
        ("dropping", (0,), (3,)),
        ("dropping", (0, 2), (2, 1)),
        ("dropping_twice", (0,), (2,)),
        ("dropping_twice", (0, 1), (2, 1)),
        ("generating", (0, 2), (1, 2)),
    ],
)
def test_random_ops_of_replicas_generate_values_of_one_process(model, starts, replicas):
    """Cases are dropout masks, the noise of a generator, and dropout that is called twice."""
    check(model, starts, replicas, 2)


def test_dropout_masks_differ_between_replicas_but_not_between_plans():
    images, labels = batches(1, 24)[0]
    equal_examples = [(tf.ones_like(images), labels)]
    logits = []
    for starts, replicas in (((0,), (2,)), ((0, 1), (1, 3))):
        ranks = train(EVERY["dropping"], starts, replicas, 2, equal_examples)
        logits.append(ranks[0].results[0]["logits"])
    assert_close(*logits)
    first, second = (logits[0][start : start + 6] for start in (0, 6))
    assert np.abs(first - second).max() > 1e-2


@pytest.mark.parametrize("options", [{"reduce_retracing": True}, {"input_signature": SIGNATURE}])
def test_step_with_relaxed_shapes_is_traced_separately_for_each_size(options):
    """Batch axes of all tensors that cross a cut are known."""
    trained = build_model(EVERY["convolutional"])
    recorder = StepRecorder(tf.function(trained.step, **options))
    images, labels = batches(1, 8)[0]
    graphs = [trace(recorder, images, labels, size) for size in (4, 8)]
    axes = BatchAxes(graphs[0], 4, graphs[1], 8)
    partition = StagePartition(graphs[0], range(len(graphs[0].layers)))
    found = {axes.batch_axis(message.tensor) for message in partition.messages}
    assert 0 in found


@pytest.mark.parametrize("model", ["deep", "convolutional"])
def test_optimizer_built_by_the_first_trace_is_supported(model):
    """The first trace has other ops than later ones. Plain descent has no slots; momentum has."""
    trained = EVERY[model]()
    images, labels = batches(1, 8)[0]
    traces = SizedTraces(StepRecorder(tf.function(trained.step)), ((images, labels), {}), 8, 8)
    partition = StagePartition(traces.microbatch_graph, range(len(traces.microbatch_graph.layers)))
    assert 0 in {traces.axes(8).batch_axis(message.tensor) for message in partition.messages}


def test_conditional_update_broadcasts_only_its_predicate():
    """Stages broadcast finiteness and norm of each gradient; every rank has the loss scale."""
    trained = build_model(EVERY["conditional"])
    images, labels = batches(1, 8)[0]
    recorder = StepRecorder(tf.function(trained.step))
    recorder.enable_branch_selection()
    graph = trace(recorder, images, labels, 8)
    partition = StagePartition(graph, (0, 2))
    update = UpdatePhase(partition)
    tensors = [partition.tensor(broadcast.tensor) for broadcast in update.broadcasts]
    assert len(tensors) == 2 * len(trained.variables)
    assert all(tensor.shape.rank == 0 for tensor in tensors)
    assert graph.placeholder_of(plain(trained.optimizer.dynamic_scale)) not in update.variables
    assert not any(op.type in ("If", "StatelessIf") for op in graph.ops)


def test_condition_that_one_stage_can_run_is_not_replaced_by_a_selection():
    """The branch that is not taken would divide by zero."""
    trained = build_model(EVERY["deep"])
    count, mean = tf.Variable(0), tf.Variable(0)

    def step(images, labels):
        result = trained.step(images, labels)
        tf.cond(count > 0, lambda: mean.assign(7 // count), mean.read_value)
        return result

    traces = SizedTraces(StepRecorder(tf.function(step)), (batches(1, 8)[0], {}), 8, 8)
    assert any(op.type == "If" for op in traces.microbatch_graph.ops)


def test_two_optimizers_need_no_broadcast():
    """Keras' optimizers would all-reduce all gradients by one op, over one replica."""
    trained = build_model(EVERY["two_optimizers"])
    images, labels = batches(1, 8)[0]
    graph = trace(StepRecorder(tf.function(trained.step)), images, labels, 8)
    update = UpdatePhase(StagePartition(graph, (0, 2)))
    assert update.broadcasts == ()
    assert len(update.variables) >= 2 * len(trained.variables)  # half of them have two slots
