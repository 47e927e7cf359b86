"""Stages that run as ranks do train to the weights of one process that accumulates."""

from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from tests.model_parallel.job import (
    batches,
    fresh,
    made,
    names_of,
    plan_of,
    run_together,
    traced,
    train,
    train_laid_out,
    trained_alone,
)
from tests.model_parallel.models import BURSTS, COUNTED, EVERY, Trained
from tf_libra.capture.variables import plain
from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.sized_traces import Traces
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.update_phase import Update
from tf_libra.model_parallel.planning.scaling_measurement import flows
from tf_libra.planning.burst.graph_reduction import reduce_graph

SIGNATURE = [tf.TensorSpec([None, 8, 8, 1]), tf.TensorSpec([None], tf.int32)]


def read(value: Any) -> Any:
    return tf.convert_to_tensor(value).numpy()


def close(one: Any, other: Any) -> None:
    np.testing.assert_allclose(read(one), read(other), rtol=2e-4, atol=2e-5)


def check(model, starts, replicas, num_microbatches, num_steps=2, batch=24, num_groups=0):
    steps = batches(num_steps, batch)
    ranks = train((EVERY | COUNTED)[model], starts, replicas, num_microbatches, steps, num_groups)
    compare(model, ranks, num_steps, batch, num_microbatches)


def compare(model, ranks, num_steps, batch, num_microbatches):
    """With one process that accumulates."""
    wanted, alone = trained_alone(
        (EVERY | BURSTS | COUNTED)[model], num_steps, batch, num_microbatches
    )
    for rank in ranks:
        for got, want in zip(rank.returned, wanted, strict=True):
            assert got.keys() == want.keys()
            for name in want:
                close(got[name], want[name])
    check_variables(ranks, alone)


@pytest.mark.parametrize("model", EVERY)
def test_weights_are_those_of_one_process(model):
    """Models of all kinds, in as many stages as they have cuts of, up to three."""
    check(model, (0, 1, 2), (1, 1, 1), 4)


@pytest.mark.parametrize(
    ("starts", "replicas", "num_microbatches"),
    [((0,), (2,), 3), ((0, 2), (2, 1), 2), ((0, 1), (1, 2), 4), ((0, 2, 3), (2, 2, 1), 1)],
)
def test_replicas_share_each_microbatch(starts, replicas, num_microbatches):
    """Layers between weights of all sizes, an update that takes the norm of all gradients."""
    batch = 24 if sum(replicas) != 5 else 40
    check("convolutional", starts, replicas, num_microbatches, batch=batch)


@pytest.mark.parametrize(("starts", "replicas"), [((0,), (2,)), ((0, 2), (1, 3)), ((0, 1), (3, 2))])
def test_metrics_are_of_what_all_replicas_have_seen(starts, replicas):
    """Ratios, whose denominators differ between replicas, sums, and what is computed of these."""
    batch = 24 if sum(replicas) != 5 else 60
    check("counted", starts, replicas, 2, batch=batch)


@pytest.mark.parametrize(
    ("model", "starts", "replicas"),
    [("counted", (0, 2), (1, 2)), ("convolutional", (0, 1), (2, 1))],
)
def test_an_evaluation_runs_forward_in_the_stages_of_the_step(model, starts, replicas):
    """The evaluation's outputs cover all samples, and no variable is trained."""
    make, [(images, labels)] = (EVERY | COUNTED)[model], batches(1, 12)
    alone = made(make, -1).trained
    wanted = alone.flagged(images, labels, False)
    models = [made(make, number) for number in range(3)]
    recorder = StepRecorder(tf.function(models[0].trained.flagged))
    training = Traces(recorder, ((images, labels), {}), 4, 6, num_ranks=3)
    given = ((images, labels), {"training": False})
    traces = Traces(recorder, given, 4, 6, num_ranks=3, trained=training.whole)
    traces.check_layers(training)
    names = [one.name for one in traces.whole.layers]
    layout = Layout.of_pipeline(plan_of(names, starts, replicas, 2)).forward()
    for rank in run_together(models, traces, layout, [(images, labels)]):
        assert {one.kind for one in rank.execution.executed} == {"forward"}
        [returned] = rank.returned
        assert returned.keys() == wanted.keys()
        for name, want in wanted.items():
            close(returned[name], want)
        for got, want in zip(rank.trained.variables, alone.variables, strict=True):
            np.testing.assert_array_equal(read(got), read(want))


def test_it_is_known_of_which_metrics_only_results_can_be_averaged():
    """Metrics that take something other than sums are listed, by the variables that they write."""
    steps = batches(1, 24)
    averages = {"mixed": {"mixed/total", "mixed/count"}, "greatest": {"greatest/value"}}
    for model, averaged in (averages | {"counted": set()}).items():
        ranks = train(COUNTED[model], (0, 2), (1, 2), 2, steps)
        for rank in ranks:
            assert {
                name for names in rank.execution.averaged.values() for name in names
            } == averaged
    whole = train(COUNTED["mixed"], (0, 2), (2, 1), 2, steps)
    assert not any(rank.execution.averaged for rank in whole)


@pytest.mark.parametrize("model", ["dropping_twice", "iterated", "running_mean"])
def test_what_no_metric_adds_up_is_averaged_without_a_word(model):
    """Though it follows from variables that are read after microbatches have written them."""
    ranks = train(EVERY[model], (0, 1), (1, 2), 2, batches(1, 36))
    assert not any(rank.execution.averaged for rank in ranks)


class Told(Trained):
    """A step that returns what microbatches count: labels, and themselves."""

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


def told() -> Trained:
    return Told(**vars(EVERY["deep"]()) | {"state": (tf.Variable(0), tf.Variable(0.0))})


@pytest.mark.parametrize("replicas", [(1, 1), (1, 2)])
def test_of_what_microbatches_count_the_last_one_s_is_returned(replicas):
    """Equal counts of replicas are not summed over them, and are no metric to warn of."""
    joint = batches(2, 24)
    seen = np.cumsum([int(tf.reduce_sum(labels)) for _, labels in joint])
    for rank in train(told, (0, 2), replicas, 2, joint):
        assert [int(one["seen"]) for one in rank.returned] == seen.tolist()
        assert [float(one["calls"]) for one in rank.returned] == [2.0, 4.0]
        assert not rank.execution.averaged


class ByHorovod(Trained):
    """A step that is written for Horovod; `accumulated` is that of one process, without."""

    def step(self, images: Any, labels: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            logits = self.call(images)
            loss = self.loss(labels, logits)
        gradients = self.reduced(tape, loss)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return {"loss": loss, "logits": logits, "updates": self.optimizer.iterations}

    def reduced(self, tape: Any, loss: Any) -> list[Any]:
        return list(hvd.DistributedGradientTape(tape).gradient(loss, self.variables))


class AddedUp(ByHorovod):
    """Over two ranks, as by scripts that divide by their number."""

    def reduced(self, tape: Any, loss: Any) -> list[Any]:
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, sparse_as_dense=True)
        return [one / 2 for one in tape.gradient(loss, self.variables)]


class OneByOne(ByHorovod):
    def reduced(self, tape: Any, loss: Any) -> list[Any]:
        gradients = tape.gradient(loss, self.variables)
        return hvd.grouped_allreduce(gradients, prescale_factor=0.5, postscale_factor=2.0)


@pytest.mark.usefixtures("horovod")
@pytest.mark.parametrize(
    ("kind", "model", "starts", "replicas", "num_groups"),
    [
        (ByHorovod, "deep", (0,), (2,), 2),
        (AddedUp, "embedded", (0, 1), (1, 1), 0),
        (OneByOne, "deep", (0, 2), (1, 1), 0),
    ],
)
def test_stages_average_what_horovod_would(kind, model, starts, replicas, num_groups):
    """Tapes and all-reduces of gradients are left out, as under data parallelism."""
    ranks = train(
        lambda: kind(**vars(EVERY[model]())), starts, replicas, 2, batches(2, 24), num_groups
    )
    compare(model, ranks, 2, 24, 2)
    assert not any(op.type.startswith("Horovod") for op in ranks[0].graph.ops)


def test_gradients_of_a_last_stage_in_which_no_layer_ends():
    """Its backward computation waits for nothing."""
    check("transformer", (0, 3), (2, 1), 2)


@pytest.mark.parametrize(
    ("starts", "replicas", "num_microbatches"),
    [((0,), (2,), 3), ((0,), (2,), 1), ((0, 2), (2, 1), 2), ((0, 1, 3), (1, 2, 2), 2)],
)
def test_replicas_all_reduce_groups_within_their_last_backward(starts, replicas, num_microbatches):
    """To the same weights, with microbatches before that are added up and without.

    Stages before them get what they wait for.
    """
    batch = 24 if sum(replicas) != 5 else 40
    check("convolutional", starts, replicas, num_microbatches, batch=batch, num_groups=3)


def test_no_stage_updates_where_a_gradient_is_not_finite():
    """Nor any other: what scales the loss is halved on every rank."""
    steps = batches(4, 24)
    steps[2] = (tf.where(steps[2][0] > 2, np.inf, steps[2][0]), steps[2][1])
    alone = made(EVERY["conditional"], -1).trained
    for step in steps:
        alone.accumulated(*step, 4)
    ranks = train(EVERY["conditional"], (0, 1, 2), (1, 2, 1), 4, steps)
    check_variables(ranks, {str(i): one for i, one in enumerate(alone.variables)})
    for rank in ranks:
        own, wanted = rank.trained.optimizer, alone.optimizer
        assert read(own.dynamic_scale) == read(wanted.dynamic_scale) == 8 * 2 / 2
        assert read(own.iterations) == read(wanted.iterations)


@pytest.mark.parametrize(("replicas", "num_microbatches"), [((2, 1), 3), ((1, 2), 1)])
def test_what_normalizes_weights_goes_on_with_every_microbatch(replicas, num_microbatches):
    """On every replica, from what the update has left."""
    check("spectral", (0, 2), replicas, num_microbatches, batch=36)


def test_a_tensor_that_is_no_sample_goes_to_replicas():
    """The table of a language model crosses all cuts, and its gradient comes back."""
    check("tied", (0, 2), (1, 2), 2)


def test_integers_of_no_sample_come_from_replicas_once():
    check("permuted", (0, 1), (2, 1), 2)


def check_burst(model, num_devices, num_ranks, first_devices=None, batch=24):
    """Layers on as many ranks as they are given; the last number goes for all that are left."""
    steps = batches(2, batch)

    def layout(names):
        counts = [*num_devices, *num_devices[-1:] * len(names)]
        firsts = [*(first_devices or ()), *[0] * len(names)]
        ranks = [tuple(range(f, f + n)) for f, n in zip(firsts, counts, strict=False)]
        return Layout.at_once(ranks[: len(names)], num_ranks)

    make = (EVERY | BURSTS)[model]
    ranks = train_laid_out(make, layout, num_ranks, 1, steps, has_branches=True)
    compare(model, ranks, 2, batch, 1)
    return ranks


# Batch normalization sees the samples that a rank computes together, as do other means.
@pytest.mark.parametrize("model", sorted((EVERY | BURSTS).keys() - {"normalized", "running_mean"}))
def test_layers_on_their_own_numbers_of_ranks(model):
    check_burst(model, (2, 1, 2, 1), 2)


@pytest.mark.parametrize("num_devices", [(4, 2, 1, 4), (1, 4, 2), (2, 2, 3, 1)])
def test_bursts_on_more_ranks(num_devices):
    """Some of which have no layer, or one that others do not divide."""
    check_burst("convolutional", num_devices, 4)


def test_what_begins_or_joins_branches_is_a_layer_where_they_count():
    """Branches are then blocks, which can be planned in parallel."""
    images, labels = batches(1, 4)[0]
    recorder = StepRecorder(tf.function(fresh(BURSTS["inception"]).step))
    traces = Traces(recorder, ((images, labels), {}), 4, 4, has_branches=True)
    names = [one.name for one in traces.whole.layers]
    assert sum("average_pooling" in one for one in names) == 2
    assert sum("concatenate" in one for one in names) == 2
    cut = StagePartition(traces.whole, range(len(names)))
    reduce_graph(len(names), list(flows(cut, traces.axes(4))), names)
    assert names_of(BURSTS["vgg"]) == [*("conv2d", "conv2d_1", "conv2d_2", "conv2d_3"),
                                       *("dense", "dense_1", "dense_2")]  # fmt: skip


def test_branches_beside_each_other():
    """The second layer on other ranks than the third."""
    check_burst("branching", (4, 2, 1, 4), 4, first_devices=(0, 2))
    check_burst("branching", (2, 1, 1, 1), 2, first_devices=(0, 1))


@pytest.mark.parametrize(("model", "seed"), [("inception", 0), ("branching", 1), ("tied", 2)])
def test_any_layers_on_any_ranks(model, seed):
    """Each layer on some of four ranks that follow each other."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, 5, 20)
    firsts = [int(generator.integers(0, 5 - count)) for count in counts]
    check_burst(model, counts.tolist(), 4, firsts)


def test_a_rank_without_a_layer_takes_part():
    ranks = check_burst("convolutional", (1,), 2)
    assert ranks[1].execution.executed == ()


def test_what_sees_a_rank_s_samples_is_that_of_one_process_on_one_rank():
    """Batch normalization on one rank, the other layers on two."""
    check_burst("normalized", (1, 1, 2), 2)


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
def test_replicas_draw_what_one_process_does(model, starts, replicas):
    """Each its samples' part: of dropout's masks, and of a generator's noise, which moves on.

    Or has moved on within the microbatch, as the seed of dropout that is called twice.
    """
    check(model, starts, replicas, 2)


def test_samples_of_other_replicas_have_other_masks():
    """And each sample the same under two plans, of other stages and replicas."""
    images, labels = batches(1, 24)[0]
    equal = [(tf.ones_like(images), labels)]
    found = []
    for starts, replicas in (((0,), (2,)), ((0, 1), (1, 3))):
        ranks = train(EVERY["dropping"], starts, replicas, 2, equal)
        found.append(ranks[0].returned[0]["logits"])
    close(*found)
    of_first, of_second = (found[0][start : start + 6] for start in (0, 6))
    assert np.abs(of_first - of_second).max() > 1e-2


@pytest.mark.parametrize("options", [{"reduce_retracing": True}, {"input_signature": SIGNATURE}])
def test_a_step_is_traced_for_each_size_whatever_its_function_says(options):
    """Every tensor that crosses a cut has samples along a known axis."""
    trained = fresh(EVERY["convolutional"])
    recorder = StepRecorder(tf.function(trained.step, **options))
    images, labels = batches(1, 8)[0]
    graphs = [traced(recorder, images, labels, size) for size in (4, 8)]
    axes = BatchAxes(graphs[0], 4, graphs[1], 8)
    cut = StagePartition(graphs[0], range(len(graphs[0].layers)))
    found = {axes.batch_axis(message.tensor) for message in cut.messages}
    assert 0 in found


@pytest.mark.parametrize("model", ["deep", "convolutional"])
def test_an_optimizer_may_be_built_by_the_first_trace(model):
    """Its trace has other ops than later ones: plain descent has no slots, momentum has."""
    trained = EVERY[model]()
    images, labels = batches(1, 8)[0]
    traces = Traces(StepRecorder(tf.function(trained.step)), ((images, labels), {}), 8, 8)
    cut = StagePartition(traces.whole, range(len(traces.whole.layers)))
    assert 0 in {traces.axes(8).batch_axis(message.tensor) for message in cut.messages}


def test_of_a_condition_only_what_decides_it_is_exchanged():
    """Only each gradient's finiteness and norm are exchanged; every rank knows the loss scale."""
    trained = fresh(EVERY["conditional"])
    images, labels = batches(1, 8)[0]
    recorder = StepRecorder(tf.function(trained.step))
    recorder.enable_branch_selection()
    graph = traced(recorder, images, labels, 8)
    cut = StagePartition(graph, (0, 2))
    update = Update(cut)
    tensors = [cut.tensor(one.tensor) for one in update.exchanged]
    assert len(tensors) == 2 * len(trained.variables)
    assert all(one.shape.rank == 0 for one in tensors)
    assert graph.placeholder_of(plain(trained.optimizer.dynamic_scale)) not in update.variables
    assert not any(op.type in ("If", "StatelessIf") for op in graph.ops)


def test_a_condition_that_one_stage_can_run_stays_one():
    """Its other branch is not computed, which here would divide by zero."""
    trained = fresh(EVERY["deep"])
    count, mean = tf.Variable(0), tf.Variable(0)

    def step(images, labels):
        result = trained.step(images, labels)
        tf.cond(count > 0, lambda: mean.assign(7 // count), mean.read_value)
        return result

    traces = Traces(StepRecorder(tf.function(step)), (batches(1, 8)[0], {}), 8, 8)
    assert any(op.type == "If" for op in traces.whole.ops)


def test_gradients_stay_with_their_stages():
    """Keras' optimizers all-reduce them among the replicas of a strategy, by one op: of one."""
    trained = fresh(EVERY["two_optimizers"])
    images, labels = batches(1, 8)[0]
    graph = traced(StepRecorder(tf.function(trained.step)), images, labels, 8)
    update = Update(StagePartition(graph, (0, 2)))
    assert update.exchanged == ()
    assert len(update.variables) >= 2 * len(trained.variables)  # half of them have two slots


def check_variables(ranks, alone):
    """Each variable on the ranks of its stage."""
    owned = [[*rank.trained.variables, *rank.trained.state] for rank in ranks]
    for number, (name, want) in zip(range(len(owned[0])), alone.items(), strict=False):
        seen = 0
        for rank, variables in zip(ranks, owned, strict=True):
            own = variables[number]
            handle = rank.graph.placeholder_of(plain(own))
            if handle is None or rank.cut.stage_of_variable(handle) not in rank.execution.stages:
                continue
            seen += 1
            close(own, want)
        assert seen, name
