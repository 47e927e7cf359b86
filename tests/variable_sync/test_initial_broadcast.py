"""The variables that two real ranks compare and copy, and the ops that a step must execute."""

import re
from collections.abc import Callable

import pytest

from tests.worker_processes import Job

RANKS = [0, 1]


@pytest.fixture(scope="module")
def job(run_job: Callable[..., Job]) -> Job:
    return run_job("variables.py", 2)


@pytest.mark.parametrize(
    "case",
    [
        "unequal_starts",
        "equal_starts",
        "broadcast_by_horovod_after_the_first_batch",
        "checkpoint_restored_on_rank_0_alone",
    ],
)
def test_trains_as_one_process_from_the_weights_of_rank_0(job: Job, case: str) -> None:
    first, second = (job.value(case, rank) for rank in RANKS)
    assert first["bits"] == second["bits"]
    assert first["error"] < 1e-5


@pytest.mark.parametrize(
    "case",
    [
        "layer_that_is_thawed",
        "changed_before_a_new_trace_is_copied",
        "models_of_the_same_names",
        "keras_compiled_twice",
        "gradients_accumulated_by_each_rank",
        "unequal_starts_with_slots_by_hand_and_a_rate_as_argument",
        "reduces_under_a_condition",
        "reduces_partly_under_a_condition",
    ],
)
def test_ranks_end_with_the_same_bits(job: Job, case: str) -> None:
    assert job.value(case, 0) == job.value(case, 1)


@pytest.mark.parametrize(
    ("case", "first"),
    [
        ("unequal_starts", "broadcast 3 of 12 replicated variables"),
        ("checkpoint_restored_on_rank_0_alone", "broadcast 3 of 12 replicated variables"),
        ("layer_that_is_thawed", "broadcast 1 of 7 replicated variables"),
        ("learning_rate_of_each_rank", "(first: 'rate')"),
        ("counter_that_starts_unequal", "(first: 'counted')"),
    ],
)
def test_initial_broadcast_is_logged_in_one_line(job: Job, case: str, first: str) -> None:
    assert job.log(case).count("INFO variables: ") == 1
    assert first in job.log(case)
    assert "variables: " not in job.log(case, rank=1)


@pytest.mark.parametrize("case", ["equal_starts", "metrics_of_batches_of_different_sizes"])
def test_equal_variables_log_nothing(job: Job, case: str) -> None:
    assert "variables: " not in job.log(case)


def test_variables_that_flow_into_weights_are_broadcast(job: Job) -> None:
    first, second = (job.value("learning_rate_of_each_rank", rank) for rank in RANKS)
    assert first == second
    assert first[0] == pytest.approx(0.1)
    assert [job.value("counter_that_starts_unequal", rank) for rank in RANKS] == [4, 4]


REFUSED = {
    "unequal_starts_refused": ["variable['w0']", "broadcast_variables='never'"],
    "changed_before_a_new_trace_is_refused": [
        "variable['w0']",
        "they were equal before",
        "broadcast_variables='always'",
    ],
    "variables_as_arguments_refused": ["variable['b0']", "broadcast_variables='never'"],
    "variables_as_arguments_checked": ["variable['b0']"],
}


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", REFUSED)
def test_differing_variables_are_rejected_on_all_ranks(job: Job, case: str, rank: int) -> None:
    message = job.error(case, rank)
    for part in ["ValueError", "do not agree", *REFUSED[case]]:
        assert part in message


def test_variables_passed_as_arguments_are_compared_one_by_one(job: Job) -> None:
    first, second = (job.value("variables_as_arguments", rank) for rank in RANKS)
    assert first == second
    assert first["traces"] == 1
    assert len(set(map(str, first["bits"]))) == 3
    assert job.log("variables_as_arguments").count("INFO variables: broadcast 3 of 3") == 3


@pytest.mark.parametrize("rank", RANKS)
def test_variables_that_are_arguments_are_undone(job: Job, rank: int) -> None:
    assert job.value("variables_as_arguments_are_undone", rank) is True


def test_moving_averages_and_metrics_may_differ(job: Job) -> None:
    first, second = (job.value("moving_averages_and_metrics", rank) for rank in RANKS)
    assert first["equal"] == second["equal"]
    for mine, other in zip(first["own"], second["own"], strict=True):
        assert mine != other


def test_constants_of_each_ranks_trace_may_differ(job: Job) -> None:
    seen = [job.value("metrics_of_batches_of_different_sizes", rank) for rank in RANKS]
    assert seen == [[24, 6], [21, 6]]


@pytest.mark.parametrize(
    "case",
    [
        "data_of_each_rank_by_default",
        "data_of_each_rank_and_broadcast",
        "data_of_each_rank_and_no_broadcast",
        "own_variables_by_name",
    ],
)
def test_data_of_each_rank_are_left_alone(job: Job, case: str) -> None:
    first, second = (job.value(case, rank) for rank in RANKS)
    assert first["bits"] == second["bits"]
    assert first["kept"] and second["kept"]


# Case: the buffers that one line names; None for no line.
DIFFERING = {
    "statistics_that_differ": ", ".join(
        repr(f"net/{suffix}")
        for suffix in ("adapted/mean", "adapted/variance", "frozen/moving_mean")
    ),
    "statistics_that_are_named": None,
    "statistics_that_are_broadcast": None,
    "data_of_each_rank_by_default": "'data'",
    "own_variables_by_name": None,
    "equal_starts": None,
    "moving_averages_and_metrics": None,
    "keras_compiled_twice": None,
}


@pytest.mark.parametrize("case", DIFFERING)
def test_buffers_that_differ_are_named_once(job: Job, case: str) -> None:
    line = "the step does not write"
    assert job.log(case).count(line) == (DIFFERING[case] is not None)
    assert line not in job.log(case, rank=1)
    if DIFFERING[case] is not None:
        assert f"differ between the ranks ({DIFFERING[case]})" in job.log(case)
        assert "local_variables" in job.log(case)


def test_pattern_that_matches_a_buffer_matches_something(job: Job) -> None:
    assert "matches no variable" not in job.log("statistics_that_are_named")


def test_statistics_of_layers_are_used_once_they_are_broadcast(job: Job) -> None:
    for case, are_equal in (("differ", False), ("are_broadcast", True)):
        first, second = (job.value(f"statistics_that_{case}", rank) for rank in RANKS)
        assert (first == second) is are_equal


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(
    ("case", "differs", "first"),
    [
        ("noise_of_each_rank_after_averaging", [True] + 5 * [False], "w0"),
        ("update_under_a_condition_of_each_rank", 6 * [True], "b0"),
    ],
)
def test_ranks_that_drift_apart_are_found_when_variables_are_checked(
    job: Job, case: str, differs: list[bool], first: str, rank: int
) -> None:
    value = job.value(case, rank)
    assert value["differ"] == differs
    assert f"variable['{first}'] is" in value["said"]


def test_pattern_without_a_match_is_logged(job: Job) -> None:
    assert "local_variables: 'missing*' matches no variable" in job.log("own_variables_by_name")
    assert [job.value("own_variables_by_name", rank)["counted"] for rank in RANKS] == [4, 14]


def test_a_rank_trains_its_own_variables_by_its_own_gradients(job: Job) -> None:
    mine, others = (job.value("trained_by_each_rank_for_itself", rank) for rank in RANKS)
    assert mine["worst"] < 1e-6 and others["worst"] < 1e-6
    assert mine["bits"] == others["bits"] and mine["head"] != others["head"]


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(
    ("case", "step"),
    [
        ("reduces_nothing_at_first", 1),
        ("reduces_nothing_later", 5),
        ("reduces_nothing_for_a_new_shape", 6),
        ("reduces_nothing_on_one_rank", 5),
    ],
)
def test_step_without_its_all_reduces_is_an_error(
    job: Job, case: str, step: int, rank: int
) -> None:
    message = job.error(case, rank)
    assert f"step {step} of " in message
    assert "has ended without 6 of the 6 all-reduces" in message


@pytest.mark.parametrize("rank", RANKS)
def test_a_graph_of_several_steps_that_lacks_the_all_reduces_of_one_is_an_error(
    job: Job, rank: int
) -> None:
    message = job.error("one_of_several_steps_reduces_nothing", rank)
    assert re.search(r"steps (\d+) to \d+ of .*which are one graph, have", message)
    assert "ended without 6 of the 18 all-reduces" in message
