"""Portfolio tuner (`auto`) on a simulated machine."""

from dataclasses import replace

import pytest

from tests.autotune.machine import MODEL, SHARED, Machine, drive
from tf_libra import strategies
from tf_libra.autotune import Budget, Phase
from tf_libra.cost_model import ContentionModel

BUDGET = Budget(150, 1e6)
SINGLE = ("syneasgd", "wfbp", "mg-wfbp", "asc-wfbp", "libra-m", "libra", "aiacc")


# One thread of one stream fills little of the link, and streams cost each other nothing.
STREAMS_PAY = replace(MODEL, overlapped=(2.5e9, 2.1e9, 0.3), exclusive=(2.5e9, 2.1e9, 0.3))


@pytest.mark.parametrize("model", [MODEL, STREAMS_PAY])
def test_portfolio_is_as_good_as_the_best_strategy(model: ContentionModel) -> None:
    tuned, experiments = drive(Machine(model=model), "auto", BUDGET, runs_streams=True)
    assert len(experiments) <= 150
    phases = {experiment.phase for experiment in experiments}
    assert phases == {Phase.MEASURE, Phase.SAMPLE, Phase.SEARCH, Phase.RACE}
    seconds = {}
    for name in SINGLE:
        single, _ = drive(Machine(model=model), name, BUDGET, runs_streams=True)
        seconds[name] = Machine(model=model).run(single.plan).seconds
    assert Machine(model=model).run(tuned.plan).seconds <= 1.02 * min(seconds.values())


def test_portfolio_notes_name_the_winner_and_the_others() -> None:
    tuned, experiments = drive(Machine(), "auto", BUDGET, runs_streams=True)
    assert tuned.race is not None and tuned.search is not None
    raced = {candidate.plan.strategy for candidate in tuned.race.candidates}
    assert {"libra", "aiacc", "syneasgd"} <= raced
    # The best settings of the search, which a few steps each do not tell apart, have no first step.
    new = [
        experiment.plan
        for experiment in experiments
        if experiment.phase is Phase.RACE and experiment.is_first
    ]
    searched = [
        candidate.plan for candidate in tuned.race.candidates if candidate.plan.strategy == "aiacc"
    ]
    assert len(searched) == 3 and not {plan.fingerprint for plan in searched} & {
        plan.fingerprint for plan in new
    }
    assert tuned.plan.strategy == tuned.race.winner.plan.strategy
    reported = next(note for note in tuned.notes if note.startswith("interleaved trials over"))
    assert all(name in reported for name in raced)


@pytest.mark.parametrize("factor", [1.0, 0.002])
def test_trials_are_few_only_if_another_kind_of_strategy_is_far_faster(factor: float) -> None:
    """On slow links, steps cost seconds that strategies of other kinds need."""
    trials = {}
    for has_alternatives in (False, True):
        tuned, trials[has_alternatives] = drive(
            Machine(model=SHARED.with_link_rate(factor)),
            "auto",
            BUDGET,
            runs_streams=True,
            has_alternatives=has_alternatives,
        )
        assert tuned.race is not None and tuned.is_complete
    is_slow = factor < 1
    assert tuned.race.num_rounds >= 2 and len(tuned.race.candidates) > 1
    assert (len(trials[True]) < len(trials[False])) == is_slow
    assert (Phase.SEARCH in {trial.phase for trial in trials[True]}) == (not is_slow)


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_measured_gamma_is_in_all_candidates(gamma: float) -> None:
    machine = Machine(model=SHARED, gamma=gamma)
    tuned, _ = drive(machine, "auto", BUDGET, runs_streams=True)
    assert tuned.contention == pytest.approx(gamma, abs=0.15) and tuned.race is not None
    raced = [candidate for candidate in tuned.race.candidates if candidate.plan.num_streams > 1]
    assert {"asc-wfbp", "aiacc"} <= {trial.plan.strategy for trial in raced}
    assert {trial.plan.contention for trial in raced} == {tuned.contention}
    for trial in raced:
        taken = machine.run(trial.plan)
        assert trial.predicted_seconds == pytest.approx(taken.seconds, rel=0.05)


def test_user_provided_gamma_is_in_all_candidates() -> None:
    given = strategies.Auto(contention=2.0)
    tuned, _ = drive(Machine(), given, BUDGET, runs_streams=True)
    assert tuned.race is not None
    raced = [
        candidate.plan for candidate in tuned.race.candidates if candidate.plan.num_streams > 1
    ]
    assert raced and {plan.contention for plan in raced} == {2.0}


def test_short_budget_falls_back_to_the_model_or_one_all_reduce() -> None:
    for steps in (1, 5, 20, 45, 60):
        tuned, experiments = drive(Machine(), "auto", Budget(steps, 1e6), runs_streams=True)
        assert len(experiments) <= steps
        assert tuned.plan.groups and tuned.notes


def test_external_engine_gets_no_streams_and_whole_tensors() -> None:
    tuned, experiments = drive(Machine(), "auto", BUDGET)
    assert not any(experiment.plan.cuts_tensors for experiment in experiments)
    assert {experiment.plan.num_streams for experiment in experiments} == {1}
    assert not tuned.plan.cuts_tensors


def test_every_other_strategy_of_all_reduces_plans() -> None:
    assert set(strategies.Auto().others()) == set(strategies.BY_NAME) - {"auto", "dear"}
