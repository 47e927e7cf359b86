"""Patterns of training scripts, on two workers: right weights, or one clear error on every rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worker_processes import Job
from tf_libra.runtime.plan_activation import NOT_EXECUTED

RANKS = [0, 1]

# Features whose weights have to be those of one process on the joint batch.
EQUAL = [
    "short_last_batch",
    "variables_created_late",
    "generator_and_discriminator",
    "several_optimizers_in_one_step",
    "accumulation_in_the_step",
    "accumulation_in_a_loop_of_the_graph",
    "accumulation_over_calls",
    "clipping_after_averaging",
    "frozen_and_shared_weights",
    "parts_of_a_weight",
    "function_that_was_traced_before",
    "function_that_was_traced_before_a_reset",
    "unequal_data_of_tapes_of_horovod",
    "unequal_data_before_and_after_a_reset",
    "concrete_function_in_the_forward_computation",
    "gradients_in_a_branch",
    "several_steps_in_a_loop_of_the_graph",
    "embedding_gathered",
    "embedding_made_dense",
    "embedding_added",
    "embedding_alone",
    "loss_scaling_by_hand",
    "tensors_without_elements",
    "gradients_that_are_none",
    "recomputed_in_backward",
    "gradients_per_example",
    "loop_over_a_dataset",
    "loop_over_a_dataset_that_is_left_early",
    "loop_over_a_dataset_that_only_tf_data_can_run",
    "steps_that_are_objects",
    "evaluated_by_the_same_function",
    "two_threads_that_step_concurrently",
    "clustered_by_xla",
    "gradient_penalty",
    "penalty_on_rows_of_all_data",
    "penalty_on_added_rows_of_all_data",
    "penalty_on_the_gradient_of_all_data",
    "adapting_to_a_task_of_each_rank",
    "not_finite_raises",
    "not_finite_is_skipped",
]

CONCRETE = ["ValueError", "ConcreteFunction 'inner'", "call the tf.function"]
# Case: what the error says on every rank.
REFUSED = {
    "tf_gradients": ["ValueError", "'w0'", "with tf.gradients", "tf.GradientTape"],
    "concrete_function_that_returns_gradients": [*CONCRETE, "returns a tensor like 'w0:0'"],
    "concrete_function_that_returns_rows": [*CONCRETE, "returns a tensor like 'table:0'"],
    "concrete_function_that_updates": [*CONCRETE, "writes 'w0:0'"],
    "concrete_function_that_accumulates": [*CONCRETE, "writes 'sum:0', which is like 'w0:0'"],
    "second_derivatives_undecided": [
        "ValueError",
        "Sharp.step",
        "'w0'",
        "inner_gradients='average'",
        "inner_gradients='local'",
    ],
    "two_functions_in_another_order_at_first": [
        "ValueError",
        "function is 'upper_step' on rank 0 and 'lower_step' on rank 1",
    ],
    "not_finite_in_an_embedding": [
        "NotFiniteError: step 2",
        "the gradient of 'table' is not finite on rank 1",
    ],
    "one_rank_alone_has_no_gradient_at_first": [
        "ValueError",
        "averaged gradients[0] is 'extra' on rank 0 and 'w2' on rank 1",
    ],
    "gradients_per_example_that_nobody_averages": [
        "ValueError",
        "per-example gradients of 'w0'",
        "updates 'w0'",
        "with hvd.allreduce in the step",
    ],
    "gradients_per_example_alone": [
        "ValueError",
        "only gradients per example, of 'w0', 'b0', 'w1', 'b1', 'w2' and 1 more",
        "rank-local",
        "hvd.allreduce",
    ],
    "gradients_by_what_a_function_was_given": [
        "ValueError",
        "updates 'w0'",
        "rank-local",
        "with hvd.allreduce in the step",
    ],
    "functions_run_eagerly": ["ValueError", "tf.config.run_functions_eagerly(True)"],
    "checkpoint_restored_on_one_rank": ["ValueError", "do not agree", "variable['"],
}

# Case: what every rank's error names, on whichever rank the case is noticed first.
OUT_OF_STEP = {
    "one_rank_alone_has_another_variable": ["a new trace, Switched.step"],
    "one_rank_alone_has_no_gradient": ["a new trace, Switched.step"],
    "one_rank_alone_has_another_size": ["a new trace, Switched.step"],
    "two_functions_in_another_order": ["in left_step", "in right_step"],
    "two_functions_of_one_name_in_another_order": ["in twin_step", "in twin_step#1"],
    "second_function_begins_on_one_rank_alone": ["the first step, ", "late_step", "early_step"],
    "data_of_one_rank_end_early": ["the end of the data, ", "step 5 was not completed"],
}


@pytest.fixture(scope="module")
def scripts(run_job: Callable[..., Job], plan_file: Path) -> Job:
    return run_job("scripts.py", 2, str(plan_file))


def assert_equal(job: Job, case: str, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    """Compares all ranks with one process, which rank 0 trains as afterwards."""
    reference = job.arrays(case, 0)
    for rank in RANKS:
        job.value(case, rank)
        saved = job.arrays(case, rank)
        ours = [name for name in saved if name.startswith("ours/")]
        assert ours
        for name in ours:
            alone = reference[name.replace("ours/", "alone/")]
            np.testing.assert_allclose(saved[name], alone, rtol=rtol, atol=atol, err_msg=name)


def assert_same_bits(job: Job, case: str) -> None:
    first, second = (job.arrays(case, rank) for rank in RANKS)
    ours = [name for name in first if not name.startswith("alone/")]
    assert ours
    for name in ours:
        assert first[name].tobytes() == second[name].tobytes(), name


@pytest.mark.parametrize("case", EQUAL)
def test_trains_as_one_process_on_the_joint_batch(scripts: Job, case: str) -> None:
    assert_equal(scripts, case)


@pytest.mark.parametrize(
    "case",
    [
        *EQUAL,
        "another_batch_size_on_each_rank",
        "mixed_precision",
        "loss_scale_that_begins_too_high",
    ],
)
def test_every_rank_has_the_same_bits(scripts: Job, case: str) -> None:
    assert_same_bits(scripts, case)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", REFUSED)
def test_is_rejected_with_one_clear_error(scripts: Job, case: str, rank: int) -> None:
    message = scripts.error(case, rank)
    for part in REFUSED[case]:
        assert part in message


def test_checkpoint_restored_on_rank_0_is_copied(scripts: Job) -> None:
    case = "checkpoint_restored_on_one_rank_before_the_first_step"
    assert_same_bits(scripts, case)
    assert "variables: broadcast 1 of " in scripts.log(case)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", OUT_OF_STEP)
def test_ranks_at_different_places_are_an_error_on_all(scripts: Job, case: str, rank: int) -> None:
    message = scripts.error(case, rank)
    for part in OUT_OF_STEP[case]:
        assert part in message


def test_new_batch_shapes_keep_the_plan(scripts: Job) -> None:
    for rank in RANKS:
        value = scripts.value("short_last_batch", rank)
        assert value["plan"] == value["given"]
        assert value["traces"] >= 2


def test_late_variables_get_a_plan_with_the_others(scripts: Job) -> None:
    phases = scripts.value("variables_created_late")
    assert phases == scripts.value("variables_created_late", rank=1)
    first, late, last = phases[:6], phases[6], phases[-1]
    assert first[-1] == ["run", 6]
    assert late == ["measure", 0]
    assert last == ["run", 7]
    assert phases[8] == ["run", 6]  # a step as before is under the plan from before


def test_gradients_that_are_none_are_named_once(scripts: Job) -> None:
    log = scripts.log("gradients_that_are_none")
    assert log.count("is None") == 1
    assert "step computes no gradient for 'unused'" in log


@pytest.mark.parametrize("case", ["recomputed_in_backward", "gradients_per_example"])
def test_each_variable_is_planned_once(scripts: Job, case: str) -> None:
    assert scripts.value(case) == ["b0", "b1", "b2", "w0", "w1", "w2"]


def test_returned_jacobians_are_logged_as_local(scripts: Job) -> None:
    log = scripts.log("gradients_per_example")
    assert log.count("gradients per example of 'b0', 'b1', 'b2', 'w0', 'w1' and 1 more") == 1


@pytest.mark.parametrize("case", ["loop_over_a_dataset", "loop_over_a_dataset_that_is_left_early"])
def test_a_loop_over_a_dataset_is_executed_as_planned(scripts: Job, case: str) -> None:
    log = scripts.log(case)
    assert log.count("is active from step") == 1
    assert "in a function of tf.data" not in log
    assert NOT_EXECUTED not in log


def test_a_penalty_on_averaged_gradients_is_executed_as_planned(scripts: Job) -> None:
    log = scripts.log("penalty_on_the_gradient_of_all_data")
    assert log.count("is active from step") == 1
    assert NOT_EXECUTED not in log


def test_loop_that_runs_inside_tf_data_is_logged_as_unplanned(scripts: Job) -> None:
    log = scripts.log("loop_over_a_dataset_that_only_tf_data_can_run")
    assert log.count("is active from step") == 0
    assert log.count("in a function of tf.data, which no plan reaches") == 1
    assert NOT_EXECUTED not in log


def test_clipping_was_at_work(scripts: Job) -> None:
    assert scripts.value("clipping_after_averaging") > 0.05


def test_function_called_elsewhere_all_reduces_nothing(scripts: Job) -> None:
    assert scripts.value("function_that_was_traced_before") is True


def test_embeddings_are_planned_as_rows_unless_made_dense(scripts: Job) -> None:
    gathered, dense, added, alone = (
        scripts.value(f"embedding_{how}") for how in ("gathered", "made_dense", "added", "alone")
    )
    assert gathered == added == {"sparse": True, "plan": ["final", "table"]}
    assert dense == {"sparse": False, "plan": ["final", "table"]}
    assert alone == {"sparse": True, "plan": ["table"]}


def test_overflow_on_one_rank_lowers_the_scale_on_all(scripts: Job) -> None:
    for rank in RANKS:
        assert scripts.value("mixed_precision", rank) == 128.0
    assert_equal(scripts, "mixed_precision", rtol=0.02, atol=0.002)


def test_a_loss_scale_that_begins_too_high_falls_alike_on_all_ranks(scripts: Job) -> None:
    scales = scripts.value("loss_scale_that_begins_too_high")
    ours, alone = scales[: len(scales) // 2], scales[len(scales) // 2 :]
    assert alone == ours == scripts.value("loss_scale_that_begins_too_high", 1)
    assert min(ours) < 2.0**18
    assert_equal(scripts, "loss_scale_that_begins_too_high", rtol=1e-3, atol=1e-5)


def test_auto_clustering_is_logged(scripts: Job) -> None:
    assert scripts.log("clustered_by_xla").count("XLA clusters the step's ops") == 1
    assert "XLA clusters" not in scripts.log("clipping_after_averaging")


def test_auto_clustering_by_the_environment_is_correct_and_logged(
    run_job: Callable[..., Job], plan_file: Path
) -> None:
    case = "clipping_after_averaging"
    flags = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"
    env = {"TF_XLA_FLAGS": flags, "TF_LIBRA_JOB_CASES": case}
    job = run_job("scripts.py", 2, str(plan_file), env=env)
    assert job.log(case).count("XLA clusters the step's ops") == 1
    assert_equal(job, case)
    assert_same_bits(job, case)


def test_ranks_may_join_together(scripts: Job) -> None:
    for rank in RANKS:
        assert len(scripts.value("joined_by_all_ranks", rank)) == 2
    assert_same_bits(scripts, "joined_by_all_ranks")


@pytest.mark.parametrize("rank", RANKS)
def test_rank_that_joins_alone_is_an_immediate_error_on_all(scripts: Job, rank: int) -> None:
    message = scripts.error("joined_by_one_rank", rank)
    assert "hvd.join()" in message
    if rank == RANKS[-1]:
        assert "tf_libra.join" in message


def test_not_finite_raises_on_all_ranks_in_the_same_step(scripts: Job) -> None:
    first, second = (scripts.value("not_finite_raises", rank) for rank in RANKS)
    assert first == second
    assert [number for number, _ in first] == [3, 5]
    for (_, message), step, rank in zip(first, (4, 6), (1, 0), strict=True):
        assert message.startswith(f"step {step} of ")
        assert f"the gradient of 'w2' is not finite on rank {rank}" in message


def test_not_finite_is_skipped_by_all_ranks_in_the_same_step(scripts: Job) -> None:
    # The step returns what it has computed: here whether each rank's own loss was finite.
    assert scripts.value("not_finite_is_skipped", 0) == [[3, True], [5, False]]
    assert scripts.value("not_finite_is_skipped", 1) == [[3, False], [5, True]]
    log = scripts.log("not_finite_is_skipped")
    assert "WARNING step 4 of " in log
    assert "WARNING step 6 of " in log
    assert log.count("does not count, and no variable was changed") == 2


@pytest.mark.parametrize("rank", RANKS)
def test_end_of_data_on_all_ranks_is_no_failure(scripts: Job, rank: int) -> None:
    assert scripts.value("all_data_end_in_the_same_step", rank) == [5, 5, 5]
    assert_same_bits(scripts, "all_data_end_in_the_same_step")


def test_same_job_under_the_same_plan_file_has_the_same_bits(
    scripts: Job, run_job: Callable[..., Job], plan_file: Path
) -> None:
    again = run_job("scripts.py", 2, str(plan_file), env={"TF_LIBRA_JOB_CASES": "same_plan_file"})
    digests: list[Any] = [
        digest
        for job in (scripts, again)
        for rank in RANKS
        for digest in job.value("same_plan_file", rank)
    ]
    assert len(set(digests)) == 1
