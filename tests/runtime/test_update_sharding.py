"""Updates at the owner, on real workers."""

import json
import signal
from collections.abc import Callable

import pytest

from tests.worker_processes import Job

NUM_WORKERS = 3
NUM_WEIGHTS = 6
# Slots per weight that hold owned parts alone after a step.
SLOTS = {"nesterov": 1, "adam": 2, "amsgrad": 3, "averaged": 0, "written": 1}
SLOTS |= {"accumulated": 3, "scaled": 1, "conditional": 1}
SLOTS |= {"each": 3, "float16": 3, "bfloat16": 3, "float64": 3}


@pytest.fixture(scope="module")
def sharded(run_job: Callable[..., Job]) -> Job:
    return run_job("sharded_updates.py", NUM_WORKERS)


@pytest.mark.parametrize("case", SLOTS)
def test_bits_are_those_of_whole_updates(sharded: Job, case: str) -> None:
    for rank in range(NUM_WORKERS):
        value = sharded.value(case, rank)
        assert value["different"] == []
        assert value["sharded"] == [True] * 3
        assert value["in_parts"] == NUM_WEIGHTS * SLOTS[case]
        assert f"its part of {NUM_WEIGHTS} gradients" in value["explained"]


def test_updates_of_float32_are_one_op_each(sharded: Job) -> None:
    for rank in range(NUM_WORKERS):
        fused = {case: sharded.value(case, rank)["fused"] for case in SLOTS}
        assert {fused[case] for case in ("nesterov", "adam", "averaged")} == {NUM_WEIGHTS}
        assert min(fused[case] for case in ("amsgrad", "each", "written")) >= NUM_WEIGHTS
        assert {fused[case] for case in ("float16", "bfloat16", "float64")} == {0}


def test_telemetry_has_the_gathers_of_the_plan(sharded: Job) -> None:
    """Rank 0 has taken those of its traced steps."""
    for rank in range(1, NUM_WORKERS):
        assert sharded.value("written", rank)["gathers"] == [
            [2, ["v0", "v1", "v2", "v3"]],
            [4, ["v4"]],
            [1, ["v5"]],
        ]


def test_updates_that_mix_elements_stay_whole(sharded: Job) -> None:
    for rank in range(NUM_WORKERS):
        value = sharded.value("factored", rank)
        assert value["different"] == []
        assert value["in_parts"] == 0
        assert "(Mean) combines different elements" in " ".join(value["explained"].split())


@pytest.mark.parametrize(
    ("case", "slots"), [("clipped", 2), ("clipped_together", 1), ("lamb", 2), ("nested", 3)]
)
def test_norms_add_sums_of_parts(sharded: Job, case: str, slots: int) -> None:
    """Last bits may differ from those of whole sums, and are the same on all ranks."""
    values = [sharded.value(case, rank) for rank in range(NUM_WORKERS)]
    assert len({value["bits"] for value in values}) == 1
    for value in values:
        assert value["error"] < 1e-5
        assert value["sharded"] == [True] * 3
        assert value["in_parts"] == NUM_WEIGHTS * slots


def test_slots_are_whole_when_all_ranks_have_synchronized(sharded: Job) -> None:
    for rank in range(NUM_WORKERS):
        value = sharded.value("life", rank)
        assert value["different"] == []
        parts = NUM_WEIGHTS * SLOTS["written"]
        assert value["in_parts"] == [*[parts] * 6, 0, *[parts] * 2]


def test_ranks_together_hold_the_slots_once(sharded: Job) -> None:
    for case, count in SLOTS.items():
        values = [sharded.value(case, rank) for rank in range(NUM_WORKERS)]
        whole = values[0]["whole"]
        assert {value["whole"] for value in values} == {whole}
        if count:
            # Scalars, such as the number of the step, are on every rank, for each optimizer.
            assert whole <= sum(value["held"] for value in values) < whole + 600


def test_graphs_of_several_steps(sharded: Job) -> None:
    for rank in range(NUM_WORKERS):
        value = sharded.value("several", rank)
        assert value["different"] == []
        assert value["sharded"] == [[copy, True, ""] for copy in (0, 1) for _ in range(3)]
        assert value["in_parts"] == NUM_WEIGHTS


@pytest.mark.parametrize(
    ("case", "optimizer"), [("checkpoints", "adam"), ("elastic_state", "written")]
)
def test_saved_values_are_whole_slots(sharded: Job, case: str, optimizer: str) -> None:
    for rank in range(NUM_WORKERS):
        parts = NUM_WEIGHTS * SLOTS[optimizer]
        assert sharded.value(case, rank) == {"different": [], "in_parts": [0, parts, 0]}


def test_models_of_keras_are_saved_with_whole_slots(sharded: Job) -> None:
    for rank in range(NUM_WORKERS):
        different, total = sharded.value("keras_model", rank)
        assert different == []
        assert total > 0


def test_fit_saves_whole_slots_on_one_rank(sharded: Job) -> None:
    for rank in range(NUM_WORKERS):
        value = sharded.value("fit", rank)
        assert value["equal"]
        assert value["in_parts"] == [4, 0]


def test_single_ranks_read_whole_slots_after_their_last_step(sharded: Job) -> None:
    """The others are in their next step, and have changed their parts."""
    for rank in range(NUM_WORKERS):
        value = sharded.value("read_by_one_rank", rank)
        assert value == {"different": [], "in_parts": NUM_WEIGHTS * SLOTS["written"]}


def test_slots_that_all_ranks_assign_are_those_of_whole_updates(sharded: Job) -> None:
    for rank in range(NUM_WORKERS):
        assert sharded.value("assigned_by_all", rank) == []


def test_read_that_an_owner_cannot_answer_fails_alone(sharded: Job) -> None:
    assert "has a part on rank 1" in sharded.value("refused", 0)["error"]
    for rank in range(NUM_WORKERS):
        assert sharded.value("refused", rank)["different"] == []


def test_read_of_a_slot_inside_of_its_step_is_an_error(sharded: Job) -> None:
    assert "were read inside of their step 2" in sharded.error("read_in_step", 0)
    for rank in range(1, NUM_WORKERS):
        assert sharded.error("read_in_step", rank).startswith("HorovodInternalError: ")


def test_norms_that_are_no_numbers_have_the_effect_of_whole_norms(sharded: Job) -> None:
    for rank in range(NUM_WORKERS):
        ours, theirs = sharded.value("clipped", rank)["numbers"]
        assert ours == theirs
        assert ours[:NUM_WEIGHTS] == [0] * NUM_WEIGHTS


def test_ranks_exchange_in_one_order_whatever_their_graphs(sharded: Job) -> None:
    for rank in range(NUM_WORKERS):
        value = sharded.value("other_ops", rank)
        assert value["different"] == []
        assert value["sharded"] == [True] * 3


def test_variables_that_one_rank_logs_are_updated_whole_on_all(sharded: Job) -> None:
    """Norm and slot are of the last group, the gradient is of the first."""
    for rank in range(NUM_WORKERS):
        value = sharded.value("other_logs", rank)
        assert value["different"] == []
        assert value["sharded"] == [False, True, False]
        assert value["in_parts"] == 3


def test_sums_by_other_ops_of_a_rank_are_an_error_that_names_them(sharded: Job) -> None:
    for rank in range(NUM_WORKERS):
        assert "6 sums: Sum of v0" in sharded.error("other_sums", rank)


def test_death_between_reduction_and_gather_ends_the_other_ranks(
    run_job: Callable[..., Job],
) -> None:
    """Weights are those of the last complete step, also if they were gathered before."""
    case = {"TF_LIBRA_JOB_CASES": "killed"}
    job = run_job("sharded_updates.py", 2, env=case, check=False)
    assert job.returncodes[1] == -signal.SIGKILL
    value = job.value("killed", 0)
    assert len(value["errors"]) == 4
    for error in value["errors"]:
        assert error.startswith("HorovodInternalError: ")
    for error in (value["errors"][1], value["errors"][3]):
        assert f"slot {value['slot']!r}" in error
        assert "rank 1" in error
    assert value["different"] == []
    assert json.loads((job.folder / "sharded.0.json").read_text()) == [True] * 3


def test_ranks_that_leave_others_in_a_step_leave_whole_slots(run_job: Callable[..., Job]) -> None:
    """One is interrupted, and another exits."""
    case = {"TF_LIBRA_JOB_CASES": "left"}
    job = run_job("sharded_updates.py", 3, env=case, check=False)
    assert job.returncodes[1:] == (-signal.SIGINT, 3)
    value = job.value("left", 0)
    assert value["error"].startswith("HorovodInternalError: ")
    assert value["different"] == []


def test_death_before_sums_are_added_leaves_weights_of_the_last_step(
    run_job: Callable[..., Job],
) -> None:
    case = {"TF_LIBRA_JOB_CASES": "killed_in_sums"}
    job = run_job("sharded_updates.py", 2, env=case, check=False)
    assert job.returncodes[1] == -signal.SIGKILL
    value = job.value("killed_in_sums", 0)
    assert value["error"].startswith("HorovodInternalError: ")
    assert value["equal"] == [True] * NUM_WEIGHTS
    assert sum(name.startswith("Sum of ") for name in value["exchanged"]) == NUM_WEIGHTS


def test_readers_wait_for_weights_that_are_gathered(sharded: Job) -> None:
    """Rank 0 ends the delay, when its readers have begun."""
    assert sharded.value("delayed", 0) == {"pending": True, "early": [], "different": []}
    for rank in range(1, NUM_WORKERS):
        assert sharded.value("delayed", rank)["different"] == []


def test_threads_read_weights_after_the_call_that_updates_them(sharded: Job) -> None:
    for rank in range(NUM_WORKERS):
        assert sharded.value("read_in_call", rank) == []


def test_failed_call_leaves_weights_of_the_last_step(sharded: Job) -> None:
    assert sharded.value("failed_call", 0) == ["ValueError", []]
    for rank in range(1, NUM_WORKERS):
        assert sharded.value("failed_call", rank) == [[], "HorovodInternalError"]


@pytest.mark.parametrize(("case", "ranks"), [("failed_in_step", 1), ("failed_in_step_of_all", 3)])
def test_call_that_fails_between_updates_leaves_values_of_the_last_step(
    sharded: Job, case: str, ranks: int
) -> None:
    """Owners had updated their parts of other weights and slots; all are whole on every rank."""
    for rank in range(NUM_WORKERS):
        value = sharded.value(case, rank)
        assert value["sharded"] == [True] * 3
        assert value["different"] == []
        assert value["error"]
        # Of several that fail, one may hear of another's failure first.
        is_of_another = value["error"] == "HorovodInternalError"
        assert is_of_another == (rank >= ranks) or rank < ranks > 1


def test_failed_call_ends_the_others_although_gathers_wait_for_one(sharded: Job) -> None:
    """The step of rank 1 goes on until that of rank 0 has failed; the last rank's has ended."""
    values = [sharded.value("failed_alone", rank) for rank in range(NUM_WORKERS)]
    assert [value["different"] for value in values] == [[]] * NUM_WORKERS
    assert len(values[0]["errors"]) == 1
    assert values[0]["errors"] != ["HorovodInternalError"]
    assert values[1]["errors"] == ["HorovodInternalError"]
    assert {*values[2]["errors"]} == {"HorovodInternalError"}


def test_weights_are_equal_if_data_end_between_updates(sharded: Job) -> None:
    values = [sharded.value("end_of_data", rank) for rank in range(NUM_WORKERS)]
    for value in values:
        assert value["sharded"] == [True] * 3
        assert value["weights"] == values[0]["weights"]


def test_sums_of_more_than_two_terms_are_updated_whole(sharded: Job) -> None:
    for rank in range(NUM_WORKERS):
        value = sharded.value("added", rank)
        assert value["different"] == []
        assert value["in_parts"] == 0
        assert "(AddN) adds in an order" in " ".join(value["explained"].split())


def test_ranks_that_leave_after_their_last_step_send_their_parts(sharded: Job) -> None:
    found = (sharded.folder / f"leave.{NUM_WORKERS - 1}.json").read_text()
    assert json.loads(found) == []


def test_tuning_measures_whole_updates(sharded: Job) -> None:
    """Then weights are gathered in several groups."""
    for rank in range(NUM_WORKERS):
        value = sharded.value("tuned", rank)
        assert value["different"] == []
        assert value["in_parts"] == [0, NUM_WEIGHTS * SLOTS["written"]]
        assert value["gathers"] > 1
        assert f"its part of {NUM_WEIGHTS} gradients" in value["explained"]


def test_trials_decide_on_a_plan_with_gathers(sharded: Job) -> None:
    parts = NUM_WEIGHTS * SLOTS["written"]
    for rank in range(NUM_WORKERS):
        value = sharded.value("tuned_with_gathers", rank)
        assert value["different"] == []
        assert sum(count > 0 for count in value["tried"]) == 1
        assert value["in_parts"] == (parts if value["gathers"] else 0)
        assert sum(value["forward"]) > 0  # from first uses of weights


def test_one_rank_takes_turns_with_sharded_updates(sharded: Job) -> None:
    for rank in range(NUM_WORKERS):
        value = sharded.value("families", rank)
        assert max(value["in_parts"]) == NUM_WEIGHTS * SLOTS["adam"]
        assert value["plans"][-1] == "OneRankPlan", value["explained"]
        assert value["error"] < 1e-4


@pytest.mark.parametrize("shard", [True, "overlap", "auto"])
def test_trials_shard_updates_as_steps_under_the_plan_do(sharded: Job, shard: bool | str) -> None:
    parts = NUM_WEIGHTS * SLOTS["written"]
    expected = [0, *[parts] * 9]
    if shard == "auto":  # only plans with gathers do
        expected = [parts * with_gathers for with_gathers in (0, 0, 1, 1, 0, 0, 1, 1, 1, 1)]
    for rank in range(NUM_WORKERS):
        value = sharded.value(f"tried_{shard}", rank)
        assert value == {"different": [], "in_parts": expected}
