"""Limits of the trials of `auto`, their cost, and links that a trial contradicts."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runtime.family_stand_ins import (
    OTHER,
    DataParallelism,
    Other,
    limit_trials,
    predict,
    train,
    train_several,
)
from tf_libra.planning.family_comparison import FamilyComparison, TrialCost
from tf_libra.runtime import family_step, family_trials, trial_sequence
from tf_libra.runtime.family_choice import FamilyChoice
from tf_libra.runtime.family_step import FamilyStep
from tf_libra.runtime.family_trials import FIRST, UNTIMED
from tf_libra.runtime.trial_clock import TrialClock


def test_trials_that_take_too_long_end_within_a_round(
    tried: FamilyStep,
    other: Other,
    chosen: list[dict[str, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train(tried, 7)
    limit_trials(monkeypatch, max_seconds=1e-9)
    train(tried, 1)
    assert tried.settled and [[*medians] for medians in chosen] == [[FIRST, OTHER]]
    assert not tried._candidates.left_out


@pytest.mark.parametrize(
    ("limits", "num_steps"),
    [({"max_seconds": 1e-9}, 3), ({"max_seconds": 1e-9}, 0), ({"max_steps": 12}, 0)],
)
@pytest.mark.parametrize(
    ("seconds", "name"), [(0.5, OTHER), (0.99, FIRST), (2.0, FIRST), (None, FIRST)]
)
def test_budget_too_small_for_two_strategies_chooses_by_prediction(
    limits: dict[str, Any],
    num_steps: int,
    seconds: float | None,
    name: str,
    first: DataParallelism,
    tried: FamilyStep,
    other: Other,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A strategy without a prediction cannot be chosen; no later job relies on the choice."""
    stored: list[FamilyChoice] = []
    monkeypatch.setattr(first, "cache", SimpleNamespace(store_family=stored.append))
    other.plan = SimpleNamespace(to_json=lambda: "{}")
    predict(tried, seconds)
    train(tried, num_steps)
    tried._clock.count_step()
    limit_trials(monkeypatch, **limits)
    train(tried, 1)
    assert tried.settled and tried._chosen == name
    assert ("by prediction, as " in " ".join(tried.explain().split())) is (seconds is not None)
    assert tried._candidates.left_out == ({} if seconds else {OTHER: UNTIMED})
    assert not stored


def test_strategy_that_has_not_repeated_a_step_is_not_chosen_by_prediction(
    tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(tried, 0.5)
    tried._candidates._repeated.clear()
    tried._clock.count_step()
    limit_trials(monkeypatch, max_seconds=1e-9)
    train(tried, 1)
    assert tried.settled and tried._chosen == FIRST and not other.undoable
    assert tried._candidates.left_out == {OTHER: UNTIMED}


@pytest.mark.usefixtures("other")
def test_budget_for_few_turns_shortens_trials(
    tried: FamilyStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds of turns of three steps each, of both strategies."""
    predict(tried, 0.5)
    limit_trials(monkeypatch, max_steps=13)
    train(tried, 12)
    assert not tried.settled
    train(tried, 1)
    assert tried.settled and len(tried._trials.medians) == 2


def test_rounds_that_take_long_end_with_the_present_one(
    tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tried, 2)
    monkeypatch.setattr(trial_sequence, "MAX_SECONDS", 0.0)
    train(tried, 6)
    assert not tried.settled
    train(tried, 1)
    assert tried.settled and len(other.undoable) >= 4


def cost_of_trials(step: FamilyStep) -> TrialCost:
    cost = step._clock.cost
    assert cost is not None and cost.describe() in step.explain()
    return cost


def test_share_of_trials_falls_while_training_goes_on(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is written once trials have ended, and again after twice as many steps."""
    written: list[TrialCost] = []

    def write(_: Any, families: FamilyComparison, step: int) -> None:
        assert families.trials is not None and step == 33
        written.append(families.trials)

    monkeypatch.setattr(family_step, "record_families", write)
    monkeypatch.setattr(trial_sequence, "choose_fastest", lambda _: FIRST)
    monkeypatch.setattr(family_step, "time", SimpleNamespace(perf_counter=first.clock))
    train(tried, 33)
    assert [(cost.num_steps, cost.share) for cost in written] == [(33, 1.0)]
    train(tried, 99)
    assert cost_of_trials(tried).num_steps == 33
    assert cost_of_trials(tried).share == pytest.approx(0.16, abs=0.1)  # some took no time
    assert len(written) == 3 and written[1].share == pytest.approx(0.35, abs=0.2)
    train_several(tried, 68)
    assert len(written) == 3
    first.rendezvous.is_over = True
    train(tried, 1)
    assert cost_of_trials(tried).num_steps == 1


def set_times(
    first: DataParallelism,
    other: Other,
    seconds: float,
    monkeypatch: pytest.MonkeyPatch,
    undoable_seconds: float | None = None,
) -> None:
    """Lets a step of data parallelism take 1 ms, and one of the other strategy `seconds`.

    One that can be undone takes `undoable_seconds`, if these are given.
    """
    step = other.step

    def timed(*args: Any) -> str:
        longer = undoable_seconds if other.is_undoable else None
        first.now += longer or seconds
        return step(*args)

    monkeypatch.setattr(other, "step", timed)
    monkeypatch.setattr(family_step, "time", SimpleNamespace(perf_counter=first.clock))


@pytest.mark.parametrize(
    ("undoable_seconds", "final_seconds", "name"), [(1.2e-3, 8e-4, OTHER), (1.2e-3, 1.1e-3, FIRST)]
)
def test_close_strategies_are_compared_again_as_they_run_after_trials(
    undoable_seconds: float,
    final_seconds: float,
    name: str,
    first: DataParallelism,
    tried: FamilyStep,
    other: Other,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step that can be undone takes longer."""
    monkeypatch.setattr(family_trials, "CLOSE", 1.25)
    set_times(first, other, final_seconds, monkeypatch, undoable_seconds)
    train(tried, 33)
    assert not tried.settled and all(other.undoable)
    train(tried, 16)
    assert tried.settled and tried._chosen == name and not any(other.undoable[16:])
    expected = {FIRST: 1e-3, OTHER: final_seconds}
    assert tried._trials.medians == pytest.approx(expected, rel=0.02)


def test_final_turns_need_steps_of_the_budget(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family_trials, "CLOSE", 1.25)
    set_times(first, other, 9e-4, monkeypatch)
    limit_trials(monkeypatch, max_steps=20)
    train(tried, 13)
    assert tried.settled and tried._chosen == OTHER and all(other.undoable[:-1])


def contradict_links(
    first: DataParallelism,
    tried: FamilyStep,
    other: Other,
    monkeypatch: pytest.MonkeyPatch,
    predicted: float | None = 1e-3,
    link_share: float = 0.5,
) -> None:
    """Lets steps of the other strategy take 2 ms, whatever its plan says of them and of links."""
    set_times(first, other, 2e-3, monkeypatch)
    monkeypatch.setattr(tried._candidates, "leave_out_predicted", lambda: None)
    monkeypatch.setattr(other, "predicted_seconds", predicted)
    monkeypatch.setattr(other, "link_share", link_share)


@pytest.mark.parametrize(
    ("predicted", "link_share", "is_measured"),
    [(1e-3, 0.5, True), (4e-3, 0.5, True), (2.2e-3, 0.5, False), (1e-3, 0.1, False)],
)
def test_links_are_measured_once_more_if_a_trial_contradicts_its_prediction(
    predicted: float,
    link_share: float,
    is_measured: bool,
    first: DataParallelism,
    tried: FamilyStep,
    other: Other,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The contradicted strategy and the fastest one have other turns."""
    contradict_links(first, tried, other, monkeypatch, predicted, link_share)
    train(tried, 33)
    assert (other.planned_again == [False]) is is_measured and tried.settled is not is_measured
    train(tried, 32 * is_measured)
    assert tried.settled and tried._chosen == FIRST
    assert other.planned_again == [False] * is_measured
    assert tried._trials.medians == pytest.approx({FIRST: 1e-3, OTHER: 2e-3}, rel=0.01)


def test_links_are_not_measured_again_without_steps_for_turns(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    contradict_links(first, tried, other, monkeypatch)
    limit_trials(monkeypatch, max_steps=20)
    train(tried, 13)
    assert tried.settled and not other.planned_again


@pytest.mark.parametrize("has_reference", [False, True])
def test_links_are_not_measured_again_without_time_for_that_and_for_turns(
    has_reference: bool,
    first: DataParallelism,
    tried: FamilyStep,
    other: Other,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two rounds of three steps of 1 and 2 ms. Measurements take some steps of 2 s."""
    contradict_links(first, tried, other, monkeypatch)
    if has_reference:
        predict(tried, 1e-3)
    seconds_left = 10.0 if has_reference else 0.017
    monkeypatch.setattr(TrialClock, "seconds_left", lambda _: seconds_left)
    train(tried, 33)
    assert tried.settled and not other.planned_again


def test_strategy_for_which_another_rank_lacks_time_is_compared_again_on_all_ranks(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else ranks would look for drift at different times, and wait for each other."""
    predict(tried, 1e-3)
    monkeypatch.setattr(first, "exchange", lambda value: [value, {OTHER: "it lacks time"}])
    tried._candidates._leave_out_late(1e9)
    assert tried._candidates.left_out == {OTHER: "it lacks time"}
    assert tried._candidates.slow == {OTHER}


def test_transfers_that_a_plan_leaves_out_contradict_no_prediction(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Examples and results take 0.9 ms of a step of 2 ms."""
    contradict_links(first, tried, other, monkeypatch)
    forecast: Any = tried._candidates.forecast
    predict(tried, 1e-3)
    forecast.layers = SimpleNamespace()
    kind, strategy = forecast._kinds[OTHER]
    kind = dataclasses.replace(kind, exchange_seconds=lambda *_: 0.9e-3)
    forecast._kinds = {OTHER: (kind, strategy)}
    monkeypatch.setattr(family_step, "compare_families", lambda *_: FamilyComparison(2, ()))
    train(tried, 33)
    assert tried.settled and not other.planned_again
    assert forecast.predicted == {OTHER: pytest.approx(1.9e-3)}


@pytest.mark.parametrize("num_steps", [0, 7])
def test_trials_that_take_too_long_after_links_were_measured_again_keep_the_first_times(
    num_steps: int,
    first: DataParallelism,
    tried: FamilyStep,
    other: Other,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contradict_links(first, tried, other, monkeypatch)
    train(tried, 33)
    assert other.planned_again == [False] and not tried.settled
    first.step_seconds = 5e-3
    train(tried, num_steps)
    limit_trials(monkeypatch, max_seconds=1e-9)
    train(tried, 1)
    assert tried.settled and tried._chosen == FIRST and not tried._candidates.left_out
    assert tried._trials.medians == pytest.approx({FIRST: 1e-3, OTHER: 2e-3}, rel=0.01)


def test_only_strategy_of_other_turns_that_fails_begins_no_trials_again(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest strategy is the one whose prediction the trials contradict."""
    contradict_links(first, tried, other, monkeypatch)
    first.step_seconds = 5e-3
    train(tried, 33)
    assert other.planned_again == [False] and not tried.settled
    other.fails = True
    monkeypatch.setattr(trial_sequence, "MAX_SECONDS", 0.0)
    train(tried, 2)
    assert tried.settled and tried._chosen == FIRST and len(tried._trials.medians) == 2
