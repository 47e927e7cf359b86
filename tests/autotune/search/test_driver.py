"""Searches on a simulated machine."""

import itertools
from dataclasses import replace

import pytest

from tests.autotune.machine import NUM_WORKERS, PROFILE, Machine
from tf_libra import strategies
from tf_libra.autotune import Budget, BudgetTracker, Phase
from tf_libra.autotune.search.driver import plan_for_setting, search
from tf_libra.autotune.search.result import START, Search
from tf_libra.autotune.search.samplers import SEARCHERS, ExhaustedError, Grid
from tf_libra.planning.data_parallel.aiacc import CommConfig

AIACC = strategies.Aiacc()


def run(max_steps: int, budget: int = 1000, **options):
    machine = Machine(gamma=1.2)
    notes: list[str] = []
    end = BudgetTracker(Budget(budget, 1e6), lambda: 0.0)
    strategy = options.pop("strategy", AIACC)
    searching = search(PROFILE, strategy, NUM_WORKERS, end, max_steps, notes, **options)
    experiments, observation = [], None
    while True:
        try:
            experiment = searching.send(observation)
        except StopIteration as finished:
            return finished.value, experiments, notes
        experiments.append(experiment)
        observation = replace(machine.run(experiment.plan), production=None)


def step_seconds(setting: CommConfig) -> float:
    return Machine(gamma=1.2).run(plan_for_setting(PROFILE, AIACC, setting, NUM_WORKERS)).seconds


def test_search_finds_one_of_the_best_settings() -> None:
    found, experiments, _ = run(100)
    assert len(experiments) <= 100
    assert {experiment.phase for experiment in experiments} == {Phase.SEARCH}
    every = [
        step_seconds(CommConfig(size, streams, threads))
        for size in AIACC.unit_sizes(PROFILE)
        for streams in AIACC.streams
        for threads in AIACC.threads
    ]
    assert step_seconds(found.best) <= 1.02 * min(every)


def test_first_step_of_a_plan_is_not_measured() -> None:
    found, experiments, _ = run(60)
    seen: set[str] = set()
    for experiment in experiments:
        assert experiment.is_first == (experiment.plan.fingerprint not in seen)
        seen.add(experiment.plan.fingerprint)
    assert len(found.trials) == sum(not experiment.is_first for experiment in experiments)


def test_measured_step_overlaps_with_gathers_of_another_step_under_its_plan() -> None:
    found, experiments, _ = run(60, overlaps=lambda plan: True)
    measured = [after for after in experiments if after.is_consecutive]
    assert len(found.trials) == len(measured) > 10
    for before, after in itertools.pairwise(experiments):
        if after.is_consecutive:
            assert after.plan == before.plan and not (after.is_first or before.is_consecutive)


def test_search_starts_with_initial_settings_and_one_unit() -> None:
    found, _, _ = run(8, initial=[CommConfig(10**6, 3, 7)])
    first, second = found.trials[:2]
    assert (first.searcher, second.searcher) == (START, START)
    assert first.setting.num_streams in (2, 4) and first.setting.num_threads == 2
    assert len(plan_for_setting(PROFILE, AIACC, second.setting, NUM_WORKERS).groups) == 1


def test_engine_without_streams_gets_one_stream() -> None:
    _, experiments, _ = run(40, runs_streams=False)
    assert {experiment.plan.num_streams for experiment in experiments} == {1}


@pytest.mark.parametrize("max_steps", [0, 1])
def test_too_few_steps_for_one_measurement_find_nothing(max_steps: int) -> None:
    found, experiments, _ = run(max_steps)
    assert found == Search() and found.best is None
    assert len(experiments) == max_steps


def test_search_ends_with_the_budget() -> None:
    _, experiments, _ = run(100, budget=7)
    assert len(experiments) == 7


class Failing:
    def __init__(self, space, seed) -> None:
        pass

    def ask(self):
        raise RuntimeError("no idea")

    tell = observe = ask


class Deaf(Failing):
    def ask(self):
        return CommConfig(2**16, 1, 1)

    def tell(self, setting, seconds):
        raise RuntimeError("what?")

    def observe(self, setting, seconds):
        pass


def broken(space, seed):
    raise RuntimeError("not today")


def test_searchers_that_always_fail_leave_the_safe_plan() -> None:
    found, _, notes = run(50, factories={"a": Failing, "b": broken, "c": Deaf})
    assert {trial.searcher for trial in found.trials} <= {START, "c"}
    assert found.best is not None
    for reported in ("a failed", "b could not start", "c failed", "exhausted"):
        assert any(reported in note for note in notes), reported


def test_failing_searcher_does_not_stop_the_others() -> None:
    found, _, _ = run(60, factories={"a": Failing, "grid": SEARCHERS["grid"]})
    assert len({t.setting for t in found.trials if t.searcher == "grid"}) > 10


def test_searchers_without_their_library_are_named() -> None:
    def missing(space, seed):
        raise ImportError("no module named optuna")

    found, _, notes = run(30, factories={"grid": SEARCHERS["grid"], "other": missing})
    assert [note for note in notes if "other need Optuna" in note]
    assert found.best is not None


def test_exhausted_search_ends() -> None:
    strategy = strategies.Aiacc(unit_bytes=10**6, streams=(1, 2), threads=(1,))
    found, experiments, notes = run(90, strategy=strategy, factories={"grid": lambda s, _: Grid(s)})
    assert len(found.seconds) == 2 and len(experiments) == 4
    assert any("exhausted" in note for note in notes)


def test_exhausted_searcher_is_no_failure() -> None:
    class Once(Failing):
        def ask(self):
            raise ExhaustedError

        def observe(self, setting, seconds):
            pass

    _, _, notes = run(30, factories={"once": Once})
    assert not [note for note in notes if "failed" in note]
