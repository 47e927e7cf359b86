"""Steps of `auto` when the ranks of a job change, or leave it."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from tests.runtime.family_stand_ins import (
    ALONE,
    OTHER,
    DataParallelism,
    Other,
    train,
    train_several,
)
from tf_libra import config
from tf_libra.autotune import Phase
from tf_libra.planning.one_worker import OneWorkerComparison
from tf_libra.runtime import family_candidates, family_step, trial_sequence
from tf_libra.runtime.family_choice import FamilyChoice, FamilyWatch
from tf_libra.runtime.family_prediction import Reference
from tf_libra.runtime.family_step import FamilyStep
from tf_libra.runtime.family_trials import FIRST, MAX_UNLIKE, SEVERAL, UNLIKE
from tf_libra.runtime.protocol import CandidateStep
from tf_libra.runtime.repeated_step import RepeatedStep
from tf_libra.runtime.strategy_kinds import Links
from tf_libra.runtime.training_step import TrainingFunction


@pytest.fixture
def step(first: DataParallelism) -> FamilyStep:
    options = config.resolve({"progress": False})
    return FamilyStep(lambda inputs: None, options, cast(TrainingFunction, first), families=())


def test_first_step_after_ranks_have_changed_exchanges_nothing_with_those_of_the_last_job(
    first: DataParallelism, step: FamilyStep
) -> None:
    first.rendezvous.is_over = True
    assert step.step((tf.zeros([4, 2]),), {}) == 1
    assert first.kinds == []


def test_ranks_compare_arguments_once_data_parallelism_has_tuned(
    first: DataParallelism, step: FamilyStep
) -> None:
    step.step((tf.zeros([4, 2]), 3, Phase.RUN, tf.float16), {})
    kinds = ["float32 (4, 2)", "3", repr(Phase.RUN), "tf.float16"]
    assert first.kinds == [[kinds, False, False]]


def test_ranks_compare_values_of_arguments_without_examples(
    first: DataParallelism, step: FamilyStep
) -> None:
    """Only one rank passes its value to the step of another strategy."""
    first.chosen = ["a digest"]
    iterator = iter(tf.data.Dataset.range(1))
    step.step((tf.constant(2.0), np.int64(3), np.array(0.5), tf.constant("a"), iterator), {})
    [[kinds, *_]] = first.kinds
    assert kinds[:4] == ["float32 2.0", "int64 3", "float64 0.5", "string b'a'"]
    assert kinds[-1] == "a digest"


def test_evaluation_is_no_step_of_trials(
    first: DataParallelism, tried: FamilyStep, other: Other
) -> None:
    """Another rank need not make it, so nothing is exchanged."""
    for _ in range(4):
        tried.step((tf.zeros([4, 2]),), {"training": False})
    assert not first.kinds and not other.undoable and not tried.settled
    train(tried, 1)
    assert len(first.kinds) == 1


@pytest.mark.usefixtures("chosen")
def test_strategy_that_fails_after_trials_is_chosen_no_longer(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[FamilyChoice] = []
    monkeypatch.setattr(first, "cache", SimpleNamespace(store_family=stored.append))
    other.plan = SimpleNamespace(to_json=lambda: "{}")
    train(tried, 32)
    assert train(tried, 1) == ["other"]
    assert other.undoable == [True] * 16 + [False]
    other.fails = True
    assert train(tried, 2) == [first.step_number - 1, first.step_number]
    assert [choice.name for choice in stored] == [OTHER, FIRST]
    families = stored[-1].families
    assert families.active == FIRST
    reasons = {row.name: row.left_out for row in families.rows}
    assert reasons == {FIRST: "", OTHER: "no memory (on rank 1)"}


@pytest.mark.usefixtures("chosen")
def test_strategy_of_an_earlier_job_that_fails_leaves_those_that_take_part(
    tried: FamilyStep, other: Other
) -> None:
    """Other times of that job are of strategies that have not been checked in this one."""
    train(tried, 32)
    tried._trials.medians["unchecked"] = 1e-9
    other.fails = True
    train(tried, 1)
    assert tried.settled and tried._chosen == FIRST


def test_trials_end_if_ranks_never_have_batches_of_the_same_kind(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlike(value: list[Any]) -> list[Any]:
        return [value, [["float32 (5, 2)"], *value[1:]]]

    monkeypatch.setattr(first, "exchange_in_step", unlike)
    train(tried, MAX_UNLIKE - 1)
    assert not tried.settled
    train(tried, 1)
    assert tried.settled and tried.runs_several and not other.undoable
    assert tried._candidates.left_out == {OTHER: UNLIKE}


def test_strategy_that_fails_in_its_turn_leaves_the_times_of_the_others(
    first: DataParallelism, tried: FamilyStep, other: Other, chosen: list[dict[str, float]]
) -> None:
    train(tried, 5)
    other.fails = True
    train(tried, 2)
    assert tried.settled and [[*medians] for medians in chosen] == [[FIRST]]
    assert len(other.undoable) == 2


def test_repeated_trials_time_data_parallelism_before_they_compare(
    tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step of the first trials is from before the drift."""
    checks: list[tuple[int, bool]] = []

    def check(_: Any, __: Any, seconds: list[float], is_repeated: bool, ___: Any) -> None:
        checks.append((len(seconds), is_repeated))

    monkeypatch.setattr(tried._candidates, "check", check)
    train(tried, 33)
    with monkeypatch.context() as patch:
        patch.setattr(FamilyWatch, "is_due", True)
        patch.setattr(FamilyWatch, "has_drifted", lambda *_: True)
        train(tried, 1)
    train(tried, 4)
    assert not checks and other.planned_again == [True]
    train(tried, 1)
    assert checks == [(5, True)]


def test_graphs_of_several_steps_run_until_step_times_change_and_strategies_are_compared(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tried._candidates, "check", lambda *_: None)
    monkeypatch.setattr(family_step, "time", SimpleNamespace(perf_counter=first.clock))
    monkeypatch.setattr(trial_sequence, "choose_fastest", lambda _: FIRST)
    train(tried, 33)
    for _ in range(100):
        assert tried.settled and tried.runs_several
        train_several(tried)
    first.step_seconds *= 3
    num_calls = 0
    while tried.settled and num_calls < 2000:  # `retune_overhead` limits trials
        train_several(tried)
        num_calls += 1
    assert 8 < num_calls < 2000  # two comparisons at least
    assert first.step_number == 33 + 4 * (100 + num_calls)
    monkeypatch.setattr(trial_sequence, "choose_fastest", lambda _: OTHER)
    train(tried, 5 + 32)
    assert train(tried, 1) == ["other"] and tried.settled and not tried.runs_several


def test_script_that_runs_several_steps_before_trials_end_trains_by_data_parallelism(
    first: DataParallelism, tried: FamilyStep, other: Other
) -> None:
    train_several(tried)
    assert tried.settled and tried.runs_several
    assert tried._candidates.left_out == {OTHER: SEVERAL}
    assert train(tried, 2) == [first.step_number - 1, first.step_number]
    assert not other.undoable


@pytest.mark.parametrize(("scales", "num_steps"), [([{"w": 2.0}] * 3, 3), ([{"w": 2.0}, {}], 2)])
def test_strategy_repeats_other_steps_if_a_weight_has_another_scale(
    scales: list[dict[str, float]],
    num_steps: int,
    tried: FamilyStep,
    other: Other,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other draws may show one by chance."""
    found = iter(scales)

    def repeat(*_: Any) -> RepeatedStep:
        return RepeatedStep("repeated", 1.0, "", next(found))

    monkeypatch.setattr(family_candidates.repeated_step, "repeat", repeat)
    monkeypatch.setattr(tried._candidates, "_time_repeated", lambda *_: "")
    tried._candidates._repeated.clear()
    assert train(tried, num_steps) == ["repeated"] * num_steps
    assert train(tried, 1) != ["repeated"]
    assert ("'w'" in tried._candidates.left_out.get(OTHER, "")) is (num_steps == 3)


@pytest.mark.parametrize("use_of_rows", ["", "an op"])
def test_rows_are_known_although_one_rank_is_slow(
    use_of_rows: str, first: DataParallelism, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pipelines take sparse gradients if the step uses their sums alone."""
    options = config.resolve({"progress": False})
    families = [ALONE, OTHER]
    step = FamilyStep(lambda inputs: None, options, cast(TrainingFunction, first), families)
    candidates, alone = step._candidates, Other()
    candidates.steps |= {ALONE: cast(CandidateStep, alone), OTHER: cast(CandidateStep, Other())}
    candidates.leave_out(ALONE, "slow", is_slow=True)

    def trace(*_: Any) -> None:
        alone.use_of_rows = use_of_rows

    monkeypatch.setattr(alone, "rejects", trace)
    monkeypatch.setattr(first, "gathers_rows", True)
    monkeypatch.setattr(candidates.forecast, "describe_slow", lambda _: "")
    candidates.check((), {}, [], False, lambda: 1.0)
    assert (OTHER in candidates.left_out) is bool(use_of_rows)
    assert use_of_rows in candidates.left_out.get(OTHER, "")


def test_guessed_step_of_one_worker_is_not_shown(first: DataParallelism) -> None:
    """A guess leaves out what a step takes outside of computation, and is no bound."""
    options = config.resolve({"progress": False})
    step = FamilyStep(lambda inputs: None, options, cast(TrainingFunction, first), [ALONE])
    forecast = step._candidates.forecast
    compared = OneWorkerComparison(2, 1.0, 2e-3, evidence="predicted")
    links = Links(2, 1e9, 0.0, 0.0)
    forecast.reference = Reference(compared, 1.0, links, is_whole=False)
    assert forecast.describe_slow(ALONE) == ""
    shown = step._compare_families()
    assert shown.one_worker is None and shown.rows[1].predicted_seconds is None
    forecast.predicted[ALONE] = 0.5  # from layers
    forecast.bounds.clear()
    shown = step._compare_families()
    assert shown.one_worker is not None and shown.rows[1].predicted_seconds == 0.5
    found = shown.one_worker
    assert (found.one_worker_seconds, found.evidence) == (0.5, "predicted")
    forecast.reference = Reference(OneWorkerComparison(2, 1.0, 2.0), 1.0, links)
    shown = step._compare_families()
    assert shown.one_worker == forecast.reference.compared
