"""The whole of AIACC's tuning, against a simulated machine."""

import pytest

from tests.tuning.machine import PROFILE, SIZES, Machine, drive
from tf_libra import strategies
from tf_libra.model.profile import BackwardProfile
from tf_libra.tuning import Budget, Conclusion, Phase
from tf_libra.tuning.similar import Job, Outline, Start

HUNDRED = Budget(100, 1e6)


def test_it_measures_searches_races_and_keeps_within_its_steps() -> None:
    tuned, experiments = drive(Machine(), "aiacc", HUNDRED, runs_streams=True)
    phases = list(dict.fromkeys(one.phase for one in experiments))
    assert phases == [Phase.MEASURE, Phase.SEARCH, Phase.RACE]
    assert len(experiments) <= 100
    assert tuned.plan.strategy == "aiacc"
    assert tuned.is_complete and tuned.search is not None and tuned.race is not None
    assert any("the best is units of" in note for note in tuned.notes)
    assert tuned.profile.names == PROFILE.names


def test_it_is_no_worse_than_one_all_reduce() -> None:
    tuned, _ = drive(Machine(), "aiacc", HUNDRED, runs_streams=True)
    one, _ = drive(Machine(), "syneasgd", HUNDRED)
    assert Machine().run(tuned.plan).seconds <= Machine().run(one.plan).seconds


def test_its_conclusion_is_kept_and_told() -> None:
    tuned, _ = drive(Machine(), "aiacc", HUNDRED, runs_streams=True)
    assert Conclusion.from_json(tuned.to_json()) == tuned


@pytest.mark.parametrize("steps", [1, 3, 5, 8])
def test_a_budget_too_short_for_a_search_leaves_one_all_reduce(steps: int) -> None:
    tuned, experiments = drive(Machine(), "aiacc", Budget(steps, 1e6), runs_streams=True)
    assert len(experiments) <= steps
    assert len(tuned.plan.groups) == 1
    assert tuned.notes


def test_without_a_trace_units_are_packed_in_the_order_of_tracing() -> None:
    tuned, _ = drive(Machine(), "aiacc", HUNDRED, traceable=False, runs_streams=True)
    assert tuned.profile is None and not tuned.is_complete
    assert tuned.plan.strategy == "aiacc"
    assert any("in the order of tracing" in note for note in tuned.notes)


def test_an_engine_of_another_library_gets_one_stream_of_whole_tensors() -> None:
    tuned, experiments = drive(Machine(), "aiacc", HUNDRED, runs_streams=False)
    assert {one.plan.num_streams for one in experiments} == {1}
    assert not any(one.plan.cuts_tensors for one in experiments)
    assert tuned.plan.num_streams == 1


def test_a_unit_size_that_is_given_is_kept() -> None:
    strategy = strategies.Aiacc(unit_bytes=2_000_000)
    tuned, _ = drive(Machine(), strategy, HUNDRED, runs_streams=True)
    assert {trial.setting.unit_bytes for trial in tuned.search.trials} == {2_000_000}


def changed_profile() -> BackwardProfile:
    """A wider last layer, and one layer more."""
    sizes = [*SIZES[:-1], 3 * SIZES[-1], 900_000]
    return BackwardProfile.from_arrays(
        sizes, [*PROFILE.compute_seconds, 5e-3], [f"t{i}" for i in range(len(sizes))]
    )


def steps_until_good(conclusion: Conclusion, machine: Machine) -> int:
    """Searched steps before a setting within 2 % of the plan in force was measured."""
    final = machine.run(conclusion.plan).seconds
    seconds = [trial.seconds for trial in conclusion.search.trials]
    return 1 + next(i for i, one in enumerate(seconds) if one <= 1.02 * final)


def test_the_search_of_a_changed_model_begins_where_the_first_ended() -> None:
    first, _ = drive(Machine(), "aiacc", HUNDRED, runs_streams=True)
    setting = first.search.best
    start = Start(Job.of(Machine().specs(), 4, 1), "aiacc", Outline.of(first.plan), setting)
    changed = Machine(changed_profile())
    alone, _ = drive(Machine(changed_profile()), "aiacc", HUNDRED, runs_streams=True)
    helped, _ = drive(changed, "aiacc", HUNDRED, runs_streams=True, start=start)
    assert any("of a job that is alike" in note for note in helped.notes)
    trials = helped.search.trials
    assert trials[0].setting.num_streams == setting.num_streams
    assert steps_until_good(helped, changed) <= max(steps_until_good(alone, changed) / 2, 1)


def test_what_a_job_that_is_alike_has_found_races_against_libras_plan() -> None:
    first, _ = drive(Machine(), "libra")
    start = Start(Job.of(Machine().specs(), 4, 1), "libra", Outline.of(first.plan))
    tuned, _ = drive(Machine(changed_profile()), "libra", start=start)
    raced = [note for one in tuned.race.contenders for note in one.plan.notes]
    assert any("outlined by what a job that is alike has found under libra" in n for n in raced)
