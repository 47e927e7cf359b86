"""Search tuner on a simulated machine."""

from dataclasses import replace

import numpy as np
import pytest

from tests.autotune.machine import MODEL, PROFILE, SIZES, Machine, drive
from tf_libra import strategies
from tf_libra.autotune import Budget, Phase, TuningResult
from tf_libra.autotune.warm_start import MAX_SETTINGS, JobSignature, PlanOutline, WarmStart
from tf_libra.specs.backward_profile import BackwardProfile

HUNDRED = Budget(100, 1e6)


def test_search_tuner_measures_searches_and_races_within_its_steps() -> None:
    tuned, experiments = drive(Machine(), "aiacc", HUNDRED, runs_streams=True)
    phases = list(dict.fromkeys(experiment.phase for experiment in experiments))
    assert phases == [Phase.MEASURE, Phase.SEARCH, Phase.RACE]
    assert len(experiments) <= 100
    assert tuned.plan.strategy == "aiacc"
    assert tuned.is_complete and tuned.search is not None and tuned.race is not None
    assert any(note.startswith("best of ") for note in tuned.notes)
    # All that race have had steps in the search.
    assert not any(
        experiment.is_first for experiment in experiments if experiment.phase is Phase.RACE
    )
    assert tuned.profile.names == PROFILE.names


def test_searched_plan_is_no_slower_than_one_all_reduce() -> None:
    tuned, _ = drive(Machine(), "aiacc", HUNDRED, runs_streams=True)
    conclusion, _ = drive(Machine(), "syneasgd", HUNDRED)
    assert Machine().run(tuned.plan).seconds <= Machine().run(conclusion.plan).seconds


def test_search_result_is_serialized_and_described() -> None:
    tuned, _ = drive(Machine(), "aiacc", HUNDRED, runs_streams=True)
    assert TuningResult.from_json(tuned.to_json()) == tuned


@pytest.mark.parametrize("steps", [1, 3, 5, 8])
def test_budget_too_short_for_a_search_gives_one_all_reduce(steps: int) -> None:
    tuned, experiments = drive(Machine(), "aiacc", Budget(steps, 1e6), runs_streams=True)
    assert len(experiments) <= steps
    assert len(tuned.plan.groups) == 1
    assert tuned.notes


def test_search_of_a_single_setting_is_not_cached() -> None:
    """A search space of one setting is complete after it."""
    lone = strategies.Aiacc(unit_bytes=2_000_000, streams=(1,), threads=(1,))
    steps = range(9, 16)
    for strategy in (strategies.Aiacc(), lone):
        tuned = [
            drive(Machine(), strategy, Budget(most, 1e6), runs_streams=True)[0] for most in steps
        ]
        counts = [0 if result.search is None else len(result.search.seconds) for result in tuned]
        assert 1 in counts
        fewest = 1 if strategy is lone else 2
        assert [result.is_complete for result in tuned] == [count >= fewest for count in counts]


def test_untraced_units_are_packed_in_tracing_order() -> None:
    tuned, _ = drive(Machine(), "aiacc", HUNDRED, traceable=False, runs_streams=True)
    assert tuned.profile is None and not tuned.is_complete
    assert tuned.plan.strategy == "aiacc"
    assert any("in the order of tracing" in note for note in tuned.notes)


def test_external_engine_gets_one_stream_of_whole_tensors() -> None:
    tuned, experiments = drive(Machine(), "aiacc", HUNDRED, runs_streams=False)
    assert {experiment.plan.num_streams for experiment in experiments} == {1}
    assert not any(experiment.plan.cuts_tensors for experiment in experiments)
    assert tuned.plan.num_streams == 1


def test_user_provided_unit_size_stays() -> None:
    strategy = strategies.Aiacc(unit_bytes=2_000_000)
    tuned, _ = drive(Machine(), strategy, HUNDRED, runs_streams=True)
    assert {trial.setting.unit_bytes for trial in tuned.search.trials} == {2_000_000}


def changed_profile() -> BackwardProfile:
    """Returns a profile with a wider last layer and one more layer."""
    sizes = [*SIZES[:-1], 3 * SIZES[-1], 900_000]
    return BackwardProfile.from_arrays(
        sizes, [*PROFILE.compute_seconds, 5e-3], [f"t{i}" for i in range(len(sizes))]
    )


def steps_until_good(conclusion: TuningResult, machine: Machine) -> int:
    """Returns the number of searched steps until one is within 2 % of the active plan's time."""
    final = machine.run(conclusion.plan).seconds
    seconds = [trial.seconds for trial in conclusion.search.trials]
    return 1 + next(i for i, step_seconds in enumerate(seconds) if step_seconds <= 1.02 * final)


TIMES = PROFILE.compute_seconds.tolist()
CHANGED = {
    "one layer wider, one more": ([*SIZES[:-1], 3 * SIZES[-1], 900_000], [*TIMES, 5e-3]),
    "twice as wide": ([2 * size for size in SIZES], [2 * seconds for seconds in TIMES]),
    "two layers less": (SIZES[:2] + SIZES[4:], TIMES[:2] + TIMES[4:]),
    "four layers more": (SIZES + SIZES[2:6], TIMES + TIMES[2:6]),
    "faster": (SIZES, [seconds / 2 for seconds in TIMES]),
}
# Of which a half is more than the few settings that every search begins with.
MANY_STEPS = 8


@pytest.mark.parametrize("gamma", [1.0, 1.6])
def test_warm_start_halves_the_search_of_a_changed_model(gamma: float) -> None:
    first, _ = drive(Machine(gamma=gamma), "aiacc", HUNDRED, runs_streams=True)
    settings = tuple(first.search.seconds)[:MAX_SETTINGS]
    start = WarmStart(
        JobSignature.from_tensors(Machine().specs(), 4, 1),
        "aiacc",
        PlanOutline.from_plan(first.plan),
        settings,
    )
    shares = []
    for name, (sizes, seconds) in CHANGED.items():
        names = [f"t{i}" for i in range(len(sizes))]
        profile = BackwardProfile.from_arrays(sizes, seconds, names)
        alone, helped = (
            drive(
                Machine(profile, gamma=gamma),
                "aiacc",
                HUNDRED,
                runs_streams=True,
                find_warm_start=lambda rate, given=given: given,
            )[0]
            for given in (None, start)
        )
        assert any("of a similar job" in note for note in helped.notes)
        assert helped.search.trials[0].setting.num_streams == settings[0].num_streams
        machine = Machine(profile, gamma=gamma)
        needed, with_help = (steps_until_good(result, machine) for result in (alone, helped))
        assert with_help <= needed + MAX_SETTINGS, name
        if needed >= MANY_STEPS:
            shares.append(with_help / needed)
    # A change may be such that what was good is not any more.
    assert np.median(shares) <= 0.5


def test_similar_jobs_plan_is_a_candidate() -> None:
    first, _ = drive(Machine(), "libra")
    start = WarmStart(
        JobSignature.from_tensors(Machine().specs(), 4, 1),
        "libra",
        PlanOutline.from_plan(first.plan),
    )
    tuned, _ = drive(Machine(changed_profile()), "libra", find_warm_start=lambda rate: start)
    raced = [note for candidate in tuned.race.candidates for note in candidate.plan.notes]
    assert any("similar job's plan (libra)" in note for note in raced)


@pytest.mark.parametrize("name", ["libra", "aiacc", "auto"])
@pytest.mark.parametrize("factor", [1.0, 0.1])
def test_warm_start_is_requested_with_the_measured_rate(name: str, factor: float) -> None:
    rates = [(factor * a, factor * b, c) for a, b, c in (MODEL.overlapped, MODEL.exclusive)]
    model = replace(MODEL, overlapped=rates[0], exclusive=rates[1])
    requested: list[float | None] = []
    tuned, _ = drive(
        Machine(model=model), name, HUNDRED, runs_streams=True, find_warm_start=requested.append
    )
    assert requested == [tuned.bytes_per_second]
    assert tuned.bytes_per_second == pytest.approx(float(model.exclusive_rate(1)), rel=0.3)
