"""`auto` against a simulated machine."""

from tests.tuning.machine import Machine, drive
from tf_libra import strategies
from tf_libra.tuning import Budget, Phase

BUDGET = Budget(150, 1e6)
SINGLE = ("syneasgd", "wfbp", "mg-wfbp", "asc-wfbp", "libra-m", "libra", "aiacc")


def test_it_is_as_good_as_the_best_single_strategy() -> None:
    tuned, experiments = drive(Machine(), "auto", BUDGET, runs_streams=True)
    assert len(experiments) <= 150
    phases = {one.phase for one in experiments}
    assert phases == {Phase.MEASURE, Phase.SAMPLE, Phase.SEARCH, Phase.RACE}
    seconds = {}
    for name in SINGLE:
        single, _ = drive(Machine(), name, BUDGET, runs_streams=True)
        seconds[name] = Machine().run(single.plan).seconds
    assert Machine().run(tuned.plan).seconds <= 1.02 * min(seconds.values())


def test_it_says_what_won_and_against_what() -> None:
    tuned, _ = drive(Machine(), "auto", BUDGET, runs_streams=True)
    assert tuned.race is not None and tuned.search is not None
    raced = {one.plan.strategy for one in tuned.race.contenders}
    assert {"libra", "aiacc", "syneasgd"} <= raced
    assert tuned.plan.strategy == tuned.race.winner.plan.strategy
    said = next(note for note in tuned.notes if note.startswith("race over"))
    assert all(name in said for name in raced)


def test_a_short_budget_leaves_it_to_the_model_or_to_one_all_reduce() -> None:
    for steps in (1, 5, 20, 45, 60):
        tuned, experiments = drive(Machine(), "auto", Budget(steps, 1e6), runs_streams=True)
        assert len(experiments) <= steps
        assert tuned.plan.groups and tuned.notes


def test_an_engine_of_another_library_is_not_asked_for_streams_or_parts() -> None:
    tuned, experiments = drive(Machine(), "auto", BUDGET)
    assert not any(one.plan.cuts_tensors for one in experiments)
    assert {one.plan.num_streams for one in experiments} == {1}
    assert not tuned.plan.cuts_tensors


def test_every_other_strategy_is_asked() -> None:
    assert set(strategies.Auto().others()) == set(strategies.BY_NAME) - {"auto"}
