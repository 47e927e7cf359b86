"""Failures and oddities on two workers: each rank's messages, and that training is right."""

import itertools
import json
from typing import Any

import numpy as np
import pytest

from tests.worker_processes import Job
from tf_libra.autotune import STEPS_PER_DRIFT_CHECK, TuningResult
from tf_libra.cost_model import cost_model_from_json
from tf_libra.runtime.plan_activation import NOT_EXECUTED
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

RANKS = [0, 1]

# Case: what the error says, the same on every rank.
REFUSED = {
    "before_hvd_init": ["ValueError", "hvd.init()", "tf-libra run -np 2"],
    "no_gradients": ["ValueError", "forgetful_step", "computes no gradient"],
    "jit_compile": ["ValueError", "compiled_step", "jit_compile=True", "XLA"],
    "jit_compile_inside": ["ValueError", "jit_compile=True", "XLA"],
    "called_inside_of_a_function": ["ValueError", "HandWritten.step", "another tf.function"],
    "plan_for_another_world_size": ["ValueError", "num_workers is 3", "2 workers"],
    "plan_of_another_model": ["ValueError", "tensor_names", "'other'", "another model"],
    "plan_of_a_model_of_another_size": ["ValueError", "num_bytes of 'w1' is 4", "576"],
    "plan_of_another_dtype": ["ValueError", "dtypes", "'int32'", "float32"],
    "plan_of_fewer_tensors": ["ValueError", "tensor_names lacks", "another model"],
}

# Case: the first difference that every rank names.
DISAGREEMENTS = {
    "differ_in_shape": "gradient['b0'] is 'float32 (16,)' on rank 0 and 'float32 (17,)' on rank 1",
    "differ_in_dtype": "gradient['b0'] is 'float32 (16,)' on rank 0 and 'float64 (16,)' on rank 1",
    "differ_in_order": "averaged gradients[0] is ",
    "differ_in_number": "averaged gradients",
    "differ_in_version_of_tensorflow": "version of TensorFlow is ",
    "differ_in_version_of_tf_libra": "version of tf_libra is ",
    "differ_in_plan": "plan is ",
    "differ_in_threads": "strategy is 'Libra(threads=(1, 2), ",
    "differ_in_strategy": "strategy is 'Libra(",
    "differ_in_having_a_plan": "plan is None on rank 0 and ",
    "differ_in_broadcast_variables": "broadcast_variables is 'never' on rank 0 and ",
    "differ_in_local_variables": "number of local_variables is 0 on rank 0 and 1 on rank 1",
    "differ_in_grappler": "Grappler switched off is False on rank 0 and True on rank 1",
    "differ_in_a_variable": "variable['w1'] is ",
    "differ_in_a_counter": "variable['counter'] is ",
    "differ_in_a_variable_that_is_to_be_broadcast": (
        "variable['average'] is 'float32 (4,)' on rank 0 and 'float32 (5,)' on rank 1"
    ),
}


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", REFUSED)
def test_invalid_use_is_rejected(trouble: Job, case: str, rank: int) -> None:
    message = trouble.error(case, rank)
    for part in REFUSED[case]:
        assert part in message


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", DISAGREEMENTS)
def test_every_rank_names_the_first_difference(trouble: Job, case: str, rank: int) -> None:
    message = trouble.error(case, rank)
    assert message.startswith("ValueError: the ranks do not agree, nothing was exchanged")
    assert DISAGREEMENTS[case] in message
    assert "on rank 0 and " in message
    assert message == trouble.error(case, 0)


def test_error_of_one_rank_while_tracing_reaches_the_others(trouble: Job) -> None:
    case = "raises_in_the_step_on_one_rank"
    assert "RuntimeError" in trouble.error(case, 1)
    other = trouble.error(case, 0)
    assert "rank 1 gave up" in other
    assert "the data set is empty" in other


def test_long_reason_reaches_the_others_with_whole_characters(trouble: Job) -> None:
    case = "raises_a_long_text_in_the_step_on_one_rank"
    assert [kind for kind, _ in trouble.value(case, 1)] == ["RuntimeError"] * 2
    for kind, message in trouble.value(case, 0):
        assert kind == "HorovodInternalError"
        assert "rank 1 gave up: RuntimeError: " in message and "m\\udce4 " in message
        assert message.count("ä") > 1000 and "\N{REPLACEMENT CHARACTER}" not in message


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("phase", ["tuning", "plan"])
@pytest.mark.parametrize("away", RANKS)
@pytest.mark.parametrize(
    ("what", "place"), [("check_variables", "check_variables"), ("commit", "an elastic commit")]
)
def test_ranks_at_different_places_are_lost_and_name_both(
    trouble: Job, what: str, place: str, away: int, phase: str, rank: int
) -> None:
    kind, message = trouble.value("elsewhere_between_steps", rank)[f"{what} {away} {phase}"]
    assert kind == "HorovodInternalError"
    assert f"between steps: {place}, " in message
    assert "step 7 " in message or "group 0 " in message
    assert "waited" not in message  # for the timeout
    for other in RANKS:
        assert f"rank {other}" in message


@pytest.mark.parametrize("rank", RANKS)
def test_call_after_a_failure_fails_with_the_first_cause(trouble: Job, rank: int) -> None:
    errors = trouble.value("raises_between_steps", rank)
    assert [number for number, _, _ in errors] == [3, 4, 5]
    for _, _, message in errors:
        assert "Dimensions must be equal" in message
        if rank == 0:
            assert "rank 1 gave up" in message
            assert "step 4 was not completed" in message


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


def test_rank_that_could_not_rewrite_is_named_with_the_reason(trouble: Job) -> None:
    first, second = (trouble.error("one_rank_cannot_rewrite", rank) for rank in RANKS)
    assert "rank 1 reduces group -1" in first
    assert second.startswith("EngineError: rank 1 could not rewrite its graph by plan")
    assert "Grappler has not handed this graph to the pass" in second


@pytest.mark.parametrize("rank", RANKS)
def test_ranks_that_group_differently_say_so_before_it_matters(trouble: Job, rank: int) -> None:
    message = trouble.error("ranks_group_differently", rank)
    assert message.startswith("EngineError: the ranks do not run the same graph under plan")
    assert message.endswith("rank 1 groups other tensors than rank 0")


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


# Folders.


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
    assert f"{len(conclusion.samples)} samples, median error of an all-reduce" in explained
    assert trouble.log("cache_and_log_folders").count("INFO fit: ") >= 2


def test_every_rank_knows_what_the_plan_rests_on(trouble: Job) -> None:
    first, second = (trouble.value("cache_and_log_folders", rank)["first"] for rank in RANKS)
    assert first["tuned"] == second["tuned"]


@pytest.mark.parametrize("rank", RANKS)
def test_result_of_a_short_budget_is_not_cached(trouble: Job, rank: int) -> None:
    value = trouble.value("cache_and_log_folders", rank)["cut short"]
    assert value == {"phases": ["measure"] * 7 + ["run"], "kept": 0}


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


def test_log_folder_holds_a_given_plan(trouble: Job, three_groups: Plan) -> None:
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


# One process.


@pytest.fixture(scope="session")
def alone(run_job: Any, tmp_path_factory: pytest.TempPathFactory) -> Job:
    broken = tmp_path_factory.mktemp("broken") / "horovod"
    broken.mkdir()
    (broken / "__init__.py").touch()
    (broken / "tensorflow.py").write_text("raise ImportError('undefined symbol: _ZN10tensorflow')")
    job: Job = run_job("alone.py", 1, str(broken.parent))
    return job


def value_of(job: Job, name: str) -> Any:
    return json.loads((job.folder / "alone.0.json").read_text())[name]


def test_single_process_passes_through_with_one_warning(alone: Job) -> None:
    value = value_of(alone, "pass_through")
    assert value["phase"] == "pass-through"
    assert value["same"]
    [reported] = value["log"]
    assert "one process" in reported
    assert "tf-libra run -np 2" in reported
    assert value["plan"] is None
    assert "pass-through" in value["explained"]


def test_fit_in_stages_asks_nothing_of_the_library_where_there_are_no_other_ranks(
    alone: Job,
) -> None:
    value = value_of(alone, "fit_in_stages")
    assert value == {"phase": "pass-through", "trained": True, "libraries": 0}


def test_horovod_of_another_tensorflow_is_one_error_line(alone: Job) -> None:
    error = value_of(alone, "broken_horovod")
    assert error.startswith("ImportError: Horovod is not built for the TensorFlow")
    assert "tools/build_horovod.py" in error
    assert "undefined symbol" in error
    assert "\n" not in error


def test_missing_horovod_is_one_error_line(alone: Job) -> None:
    error = value_of(alone, "missing_horovod")
    assert error.startswith("ImportError: Horovod is ")
    assert "tools/build_horovod.py" in error
    assert "\n" not in error


DRIFTS = [
    # case, the step in which it is noticed, the rank of which the condition is false
    ("drifts_in_the_first_step", 0, 1, "condition"),
    ("drifts_while_plans_are_tried", 4, 1, "condition"),
    ("drifts_under_a_plan", 3, 1, "condition"),
    ("drifts_on_rank_0", 3, 0, "condition"),
    ("drifts_in_a_loop", 3, 1, "loop"),
    ("drifts_in_a_loop_on_rank_0", 4, 0, "loop"),
    ("drifts_in_a_loop_over_data", 3, 1, "condition"),
    ("drifts_within_a_graph", 2, 1, "condition"),
]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("case", "at", "who", "kind"), DRIFTS)
def test_condition_of_one_rank_is_an_error_on_all_in_its_step(
    trouble: Job, case: str, at: int, who: int, kind: str, rank: int
) -> None:
    value = trouble.value(case, rank)
    message = value["message"]
    assert value["at"] == at, message
    first = 3 * at + 1 if case == "drifts_within_a_graph" else at + 1
    for words in (f"rank {rank}, step {first} of ", f"the {kind} '", "the all-reduce of '"):
        assert words in message
    ended = ("ends", "continues") if kind == "loop" else ("is false", "is true")
    for other in (0, 1):
        assert f"{ended[other != who]} on rank {other}" in message
    if case not in ("drifts_in_a_loop", "drifts_in_a_loop_on_rank_0", "drifts_in_a_loop_over_data"):
        # Nothing of another step was added. Loops have completed a turn before.
        assert case == "drifts_within_a_graph" or all(value["same"])


def test_branches_that_reduce_the_same_may_differ_between_ranks(trouble: Job) -> None:
    for rank in (0, 1):
        assert trouble.value("branches_that_reduce_the_same", rank) == "run"
        arrays = trouble.arrays("branches_that_reduce_the_same", rank)
        names = [name.removeprefix("ours/") for name in arrays if name.startswith("ours/")]
        assert len(names) == 6
        for name in names:
            np.testing.assert_allclose(arrays[f"ours/{name}"], arrays[f"alone/{name}"], rtol=1e-9)


def test_layers_numbered_differently_on_one_rank_are_matched(trouble: Job) -> None:
    case = "numbered_otherwise_on_one_rank"
    values = [trouble.value(case, rank) for rank in RANKS]
    assert values[0] == values[1]
    assert len(values[0]["names"]) == 6
    first, second = (trouble.arrays(case, rank) for rank in RANKS)
    for i in range(6):
        np.testing.assert_array_equal(first[f"ours/{i}"], second[f"ours/{i}"])
        np.testing.assert_allclose(first[f"ours/{i}"], first[f"alone/{i}"], rtol=1e-7, atol=1e-9)
    lines = [line for line in trouble.log(case).splitlines() if "of rank 1 is matched with" in line]
    assert len(lines) == 1
    assert values[0]["names"][0] in lines[0]


@pytest.mark.parametrize("rank", RANKS)
def test_names_that_differ_otherwise_name_the_way_out(trouble: Job, rank: int) -> None:
    error = trouble.error("named_otherwise_on_one_rank", rank)
    assert error.startswith("ValueError: ")
    for words in ("'b0' on rank 0", "'bias' on rank 1", "keras.utils.clear_session()"):
        assert words in error
