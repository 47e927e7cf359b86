"""Tuning on two workers: budgets, cached plans, profiles, log folders."""

import itertools

import numpy as np
import pytest

from tests.worker_processes import Job
from tf_libra.autotune import STEPS_PER_DRIFT_CHECK, TuningResult
from tf_libra.cost_model import cost_model_from_json
from tf_libra.runtime.plan_activation import NOT_EXECUTED
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

RANKS = [0, 1]


@pytest.mark.parametrize(
    "case", ["broadcast_variables", "grappler_switched_off", "plan_that_is_left_for_another"]
)
def test_trains_as_one_process_does(trouble: Job, case: str) -> None:
    saved = trouble.arrays(case)
    ours = {name: value for name, value in saved.items() if name.startswith("ours/")}
    assert ours
    for name, value in ours.items():
        rtol, atol = (1e-9, 1e-12) if value.dtype == np.float64 else (1e-5, 1e-7)
        alone = saved[name.replace("ours/", "alone/")]
        np.testing.assert_allclose(value, alone, rtol=rtol, atol=atol, err_msg=name)


def test_broadcast_takes_the_values_of_rank_0(trouble: Job) -> None:
    first, second = (trouble.arrays("broadcast_variables", rank) for rank in RANKS)
    for name, value in first.items():
        if name.startswith("started/"):
            assert not np.array_equal(value, second[name])
        if name.startswith("ours/"):
            assert value.tobytes() == second[name].tobytes(), name


def test_compiled_forward_computation_is_no_obstacle(trouble: Job) -> None:
    first, second = (trouble.arrays("jit_compile_of_the_loss", rank) for rank in RANKS)
    for name, value in first.items():
        assert value.tobytes() == second[name].tobytes(), name


@pytest.mark.parametrize("rank", RANKS)
def test_gradient_that_is_none_is_passed_through(trouble: Job, rank: int) -> None:
    assert trouble.value("none_gradient", rank) is None
    assert trouble.log("none_gradient", rank).count("computes no gradient for 'unused'") == 1


@pytest.mark.parametrize("rank", RANKS)
def test_tried_plans_are_unregistered(trouble: Job, rank: int) -> None:
    value = trouble.value("plans_that_were_tried", rank)
    held = value["held"]
    assert len(held) > 1
    assert held.pop(value["in_force"]) == 1
    assert set(held.values()) == {0}


def test_plan_slower_than_expected_is_retuned_in_small_bursts(trouble: Job) -> None:
    case = "plan_that_is_left_for_another"
    both = [trouble.value(case, rank) for rank in RANKS]
    reported = both[0]["reported_plans"]
    assert reported == both[1]["reported_plans"]
    plans = [plan for _, plan, _ in reported]
    assert [plan for plan, _ in itertools.groupby(plans)] == [None, "first", "second"]
    begun = plans.index("first")
    doses = [
        (phase, len(list(steps)))
        for phase, steps in itertools.groupby(phase for phase, _, _ in reported[begun:])
    ]
    # What a step leaves is where the next one is: a dose ends with the step after it.
    assert [phase for phase, _ in doses] == ["run", "measure", "run", "measure", "run"]
    assert [count for phase, count in doses if phase == "measure"] == [9, 5]
    assert all(count >= STEPS_PER_DRIFT_CHECK for phase, count in doses if phase == "run")
    assert not any(settled for phase, _, settled in reported if phase == "measure")
    assert reported[-1] == ["run", "second", True]
    assert "retuning, with at most" in " ".join(both[0]["explained"].split())
    assert "retuning, with at most" in trouble.log(case, 0)
    assert "is active from step" in trouble.log(case, 0)
    assert ", replacing " in trouble.log(case, 0)


@pytest.mark.parametrize("rank", RANKS)
def test_random_generators_may_differ(trouble: Job, rank: int) -> None:
    assert trouble.value("random_generator_of_each_rank", rank) == "run"


@pytest.mark.parametrize("rank", RANKS)
def test_disabled_grappler_is_logged_once(trouble: Job, rank: int) -> None:
    assert trouble.log("grappler_switched_off", rank).count("Grappler is switched off") == 1
    assert NOT_EXECUTED not in trouble.log("grappler_switched_off", rank)
    # Nothing is tried out, since nothing could take effect.
    assert trouble.value("grappler_switched_off", rank) == {"phase": "run", "plan": None}


@pytest.mark.parametrize("rank", RANKS)
def test_profiler_session_of_the_user_is_left_alone(trouble: Job, rank: int) -> None:
    value = trouble.value("profiler_session_of_the_user", rank)
    assert value["phase"] == "run"
    assert value["traces"] == 1
    assert any("another profiler session is active" in note for note in value["notes"])
    assert any("9 steps" in note and "start it once" in note for note in value["notes"])


@pytest.mark.parametrize("rank", RANKS)
def test_tuning_goes_on_after_profiles_of_the_user(trouble: Job, rank: int) -> None:
    value = trouble.value("profiles_of_the_user_that_end", rank)
    phases = value["phases"]
    # Graphs are collected in 2 steps and 3 + 5 are profiled; none of them is charged.
    assert set(phases[:13]) == {"measure"}
    assert phases[-1] == "run"
    assert value["traces"] == 2
    assert not any("profiler session" in note for note in value["notes"])
    if rank == 0:
        assert value["profile"] > 0


@pytest.mark.parametrize("rank", RANKS)
def test_budget_of_five_steps_ends_early_and_says_so(trouble: Job, rank: int) -> None:
    value = trouble.value("short_budget", rank)
    assert value["phases"] == ["measure"] * 5 + ["run"] * 2
    assert any("budget of 5 steps" in note for note in value["notes"])
    assert "budget of 5 steps" in value["explained"]


def test_budget_of_no_seconds_still_gives_a_plan(trouble: Job) -> None:
    value = trouble.value("no_seconds_at_all")
    assert value["phase"] == "run"
    assert any("no profile could be measured" in note for note in value["notes"])


def test_cached_plan_runs_immediately_with_its_profile_and_model(trouble: Job) -> None:
    value = trouble.value("cache_and_log_folders")
    assert value["first"]["phases"] == ["measure"]
    conclusion = TuningResult.from_json(value["first"]["tuned"])
    assert conclusion.is_complete
    assert conclusion.is_fitted
    # The conclusion for its like, and what jobs of other models may begin with.
    assert [name.partition("-")[0] for name in value["kept"]] == ["tf_libra", "tf_libra_start"]
    assert value["second"]["phases"] == ["run", "run"]
    for name in ("plan", "profile", "cost_model", "tuned"):
        assert value["second"][name] == value["first"][name]
    explained = " ".join(value["second"]["explained"].split())
    assert (
        f"{len(conclusion.samples)} samples, median error of overlapped or exclusive" in explained
    )
    assert trouble.log("cache_and_log_folders").count("INFO fit: ") >= 2


def test_every_rank_knows_what_the_plan_rests_on(trouble: Job) -> None:
    first, second = (trouble.value("cache_and_log_folders", rank)["first"] for rank in RANKS)
    assert first["tuned"] == second["tuned"]


@pytest.mark.parametrize("rank", RANKS)
def test_result_of_a_short_budget_is_not_cached(trouble: Job, rank: int) -> None:
    value = trouble.value("cache_and_log_folders", rank)["cut short"]
    assert value == {"phases": ["measure"] * 4 + ["run"], "kept": 0}


@pytest.mark.parametrize(
    "job",
    [
        "another model",
        *(f"corrupt {number}" for number in range(5)),
        "wrong plan",
        "plan for 3 workers",
        "too many threads",
    ],
)
@pytest.mark.parametrize("rank", RANKS)
def test_cached_plan_that_does_not_fit_is_replaced(trouble: Job, job: str, rank: int) -> None:
    assert trouble.value("cache_and_log_folders", rank)[job] == "measure"


def test_unusable_cache_files_are_logged(trouble: Job) -> None:
    log = trouble.log("cache_and_log_folders")
    assert log.count("WARNING cache_dir: cannot use the cached plan") == 8
    assert log.count("WARNING cache_dir: cannot read an earlier result: tf_libra_start-") == 8


def test_log_folder_holds_profile_model_and_plan(trouble: Job) -> None:
    value = trouble.value("cache_and_log_folders")
    logged = value["logged"]
    assert Plan.from_json(logged["plan.json"]) == Plan.from_json(value["first"]["plan"])
    assert BackwardProfile.from_json(logged["profile.json"]).names
    assert cost_model_from_json(logged["cost_model.json"]).num_workers == 2


def test_log_folder_holds_a_user_provided_plan(trouble: Job, three_groups: Plan) -> None:
    logged = trouble.value("log_folder_of_a_given_plan")
    assert Plan.from_json(logged.pop("plan.json")) == three_groups
    assert logged == {}


def test_rank_0_alone_writes(trouble: Job) -> None:
    value = trouble.value("cache_and_log_folders", rank=1)
    assert value["kept"] == []
    assert value["logged"] == {}
    assert trouble.value("log_folder_of_a_given_plan", rank=1) == {}


def test_folder_that_cannot_be_written_does_not_end_the_training(trouble: Job) -> None:
    case = "folders_that_cannot_be_written"
    assert trouble.value(case) == "run"
    assert "WARNING cache_dir: cannot store the result" in trouble.log(case)
    assert "WARNING logdir: cannot write all files" in trouble.log(case)
