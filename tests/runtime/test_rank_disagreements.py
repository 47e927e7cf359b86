"""Invalid use and ranks that disagree: each rank's messages."""

import numpy as np
import pytest

from tests.worker_processes import Job

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
    for number, _, message in errors:
        assert "Dimensions must be equal" in message
        assert ("an earlier call has failed" in message) is (rank == 1 and number > 3)
        if rank == 0:
            assert "rank 1 gave up" in message
            assert "step 4 was not completed" in message


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
