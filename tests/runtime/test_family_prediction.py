"""Predictions of pipelines and bursts from what data parallelism and one set of layers measured."""

import dataclasses

import pytest

import tf_libra
from tf_libra.autotune import TuningResult
from tf_libra.cost_model import ContentionModel
from tf_libra.planning.one_worker import OneWorkerComparison
from tf_libra.runtime.family_prediction import (
    CALLS_SECONDS,
    MEASURED_SECONDS,
    FamilyPrediction,
    Reference,
    correct_speed,
    describe_slow,
    predict_families,
)
from tf_libra.runtime.strategy_kinds import KINDS, Links, StrategyKind
from tf_libra.specs.plan import Plan, TensorGroup
from tf_libra.strategies import DeepPool, OneRank, Spp

ALONE, BATCH, MICROBATCHES = "one-rank", 48, 4
PIPELINES, BURSTS = KINDS["pipelines"], KINDS["bursts"]
FORWARD, BACKWARD, UPDATE = (0.08, 0.08, 0.01), (0.16, 0.16, 0.02), (0.0, 0.0, 0.01)
PARAMETERS, ACTIVATIONS = (1e3, 1e3, 1e8), (1e5, 1e5)


def reference(num_ranks: int, step: float, rate: float = 1e8, alone: float = 0.52) -> Reference:
    compared = OneWorkerComparison(num_ranks, step, alone)
    links = Links(num_ranks, rate, startup_seconds=1e-3, latency_seconds=1e-4)
    return Reference(compared, compute_seconds=alone / num_ranks, links=links)


def layers(num_ranks: int) -> tf_libra.LayerGraph:
    """Layers of the joint batch, whose time is proportional to the number of examples."""
    return tf_libra.LayerGraph.chain(
        [[time / num_ranks, time] for time in FORWARD],
        [[time / num_ranks, time] for time in BACKWARD],
        PARAMETERS,
        ACTIVATIONS,
        input_shares=(1 / num_ranks, 1.0),
    )


FAMILIES = {
    "one-rank": (KINDS["steps on one rank"], OneRank()),
    "spp": (PIPELINES, Spp(num_microbatches=MICROBATCHES)),
    "deeppool": (BURSTS, DeepPool()),
}


def predicted(made: Reference, graph: tf_libra.LayerGraph) -> dict[str, float]:
    found = predict_families(correct_speed(made, graph), made.links, BATCH, FAMILIES)
    assert not any(each.problem for each in found.values())
    return {name: each.seconds for name, each in found.items()}


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_predictions_are_those_of_the_planners(num_ranks: int) -> None:
    """Large weights at the end, whose all-reduce takes seconds: one rank has them."""
    made = reference(num_ranks, step=2.0)
    found = predicted(made, layers(num_ranks))
    alone = sum(FORWARD) + sum(BACKWARD)
    assert found[ALONE] == pytest.approx(alone * made.compute_seconds * num_ranks / alone)
    microbatches = MICROBATCHES
    chain = tf_libra.LayerGraph.chain(
        [time / microbatches for time in FORWARD],
        [time / microbatches for time in BACKWARD],
        PARAMETERS,
        [size / microbatches for size in ACTIVATIONS],
    ).with_speed(0.52 / alone)
    cluster = tf_libra.Cluster.from_bandwidth([[1e8] * num_ranks] * num_ranks)
    plan = tf_libra.make_pipeline_plan(chain, cluster, "spp", num_microbatches=microbatches)
    calls = 2 * microbatches * 3e-4  # forward and backward
    assert plan.predicted_seconds is not None
    assert found["spp"] == pytest.approx(plan.predicted_seconds + calls, rel=1e-6)
    # The first layers are shared out, and all else runs on one rank.
    assert 0.52 / num_ranks < found["deeppool"] < 0.52


def test_predictions_have_the_scale_of_steps_in_training() -> None:
    slow = layers(2).with_speed(1.3)
    first, second = predicted(reference(2, 2.0), layers(2)), predicted(reference(2, 2.0), slow)
    assert second == pytest.approx(first)


def test_layers_are_as_measured_once_training_has_another_speed() -> None:
    slow, made = layers(2).with_speed(1.3), dataclasses.replace(reference(2, 2.0), is_current=False)
    assert correct_speed(made, slow) == slow


@pytest.mark.parametrize(
    ("num_ranks", "kind", "limit"),
    [(2, PIPELINES, 32 / 17), (3, PIPELINES, 48 / 17), (2, BURSTS, 2.0), (3, BURSTS, 3.0)],
)
def test_strategies_that_cannot_be_faster_are_not_measured(
    num_ranks: int, kind: StrategyKind, limit: float
) -> None:
    least = 0.52 / limit + CALLS_SECONDS
    assert "at least" in reference(num_ranks, 1.02 * least).describe_bound(kind)
    assert not reference(num_ranks, 1.04 * least).describe_bound(kind)


def test_steps_too_short_for_calls_are_not_measured() -> None:
    """Communication takes most of a step of two milliseconds."""
    assert reference(2, 2e-3, alone=1e-3).describe_bound(BURSTS)


def test_time_for_measurements_is_limited() -> None:
    assert reference(2, 1.0, alone=MEASURED_SECONDS / 2).num_repeats < 1
    assert reference(2, 1.0, alone=MEASURED_SECONDS / 6).num_repeats == 1
    assert reference(2, 1.0, alone=MEASURED_SECONDS / 1000).num_repeats == 3
    assert not reference(2, 1.0).describe_late(seconds_left=10, num_plans=1)
    assert reference(2, 1.0).describe_late(seconds_left=10, num_plans=2)
    assert reference(64, 1.0).describe_late(seconds_left=20, num_plans=1)
    assert not reference(64, 1.0).describe_late(seconds_left=30, num_plans=1)


def test_step_of_one_worker_is_bounded_if_all_of_a_step_was_measured() -> None:
    profile = tf_libra.BackwardProfile.from_arrays([1000, 1000], [2e-5, 1e-5])
    plan = Plan.for_profile(profile, (TensorGroup(0, 2, 1),), 2, "by hand")
    cost = ContentionModel(2, 1e-5, (1.0, 0.0), (1e9, 0.0, 0.0), (1e9, 0.0, 0.0))
    result = TuningResult(plan, profile, cost)
    steps = [[4e-3, 5e-3, 6e-3]] * 2
    guessed = Reference.from_result(result, steps)
    whole = Reference.from_result(dataclasses.replace(result, rest_seconds=2e-3), steps)
    assert guessed is not None and whole is not None
    assert not guessed.is_whole and guessed.compared.evidence == "predicted"
    assert whole.is_whole and whole.compared.evidence == "bound"


def test_strategies_that_may_win_are_tried() -> None:
    assert not describe_slow({"one-rank": 2.0, "spp": 1.1, "deeppool": 1.05}, 1.0, ALONE)
    assert [*describe_slow({"one-rank": 2.0, "spp": 1.2}, 1.0, ALONE)] == ["spp"]
    (reason,) = describe_slow({"one-rank": 0.5, "deeppool": 0.9}, 1.0, ALONE).values()
    assert "900 ms" in reason and "one-rank 500 ms" in reason


def test_a_pipeline_that_may_take_longer_than_predicted_leaves_no_burst_out() -> None:
    """Pipelines took up to 1.6 times as long as predicted; measured steps decide."""
    assert not describe_slow({ALONE: 0.058, "spp": 0.038, "deeppool": 0.057}, 0.17, ALONE)
    assert [*describe_slow({ALONE: 0.2, "spp": 0.03, "deeppool": 0.057}, 0.2, ALONE)] == [
        "deeppool"
    ]


def test_a_strategy_without_a_plan_has_a_reason() -> None:
    def fail(*_: object) -> float:
        raise ValueError("no plan")

    families = {"spp": (dataclasses.replace(PIPELINES, predict=fail), Spp())}
    found = predict_families(layers(2), reference(2, 1.0).links, BATCH, families)
    assert found == {"spp": FamilyPrediction(0.0, "no plan")}


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_predictions_have_transfers_of_examples_and_results(num_ranks: int) -> None:
    """One rank receives the shares of the others, and sends them theirs."""
    made, graph = reference(num_ranks, step=2.0), layers(num_ranks)
    before = predicted(made, graph)
    exchanging = dataclasses.replace(graph, input_bytes=3e7, output_bytes=6e6, update_broadcasts=2)
    found = predicted(made, exchanging)
    others = 1 - 1 / num_ranks
    added = {name: found[name] - seconds for name, seconds in before.items()}
    assert added[ALONE] == pytest.approx(2e-4 + others * 0.36)
    broadcasts = 2 * (1e-4 + 3e-4)
    # The examples arrive while those of the first rank are computed, or on all ranks.
    assert added["spp"] == pytest.approx(1e-4 + others * 0.06 + broadcasts)
    assert added["deeppool"] == pytest.approx(1e-4 + others * 0.06 + broadcasts)


def test_pipeline_waits_for_examples_on_slow_links() -> None:
    made, graph = reference(2, step=2.0), dataclasses.replace(layers(2), input_bytes=2e8)
    before = predicted(made, layers(2))["spp"]
    after = predicted(made, graph)["spp"]
    assert after == pytest.approx(before / 2 + 1.0 + 1e-4)


def test_examples_and_results_grow_with_the_batch() -> None:
    graph = dataclasses.replace(layers(2), input_bytes=10.0, output_bytes=4.0, update_broadcasts=1)
    larger = tf_libra.LayerGraph.mean([graph, graph]).with_speed(2.0).with_batch(3.0, 2)
    assert (larger.input_bytes, larger.output_bytes, larger.update_broadcasts) == (30.0, 12.0, 1)
    assert tf_libra.LayerGraph.from_json(larger.to_json()) == larger
