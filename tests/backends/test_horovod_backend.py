"""engine="horovod": Horovod executes the plan, and weights are those of one process."""

import itertools

import numpy as np
import pytest

from tests.worker_processes import Job
from tf_libra.backends import horovod_backend
from tf_libra.runtime.plan_activation import NOT_EXECUTED
from tf_libra.specs.plan import Plan, TensorGroup

RANKS = [0, 1]
MIB = 2**20


@pytest.fixture
def job(horovod_engine: Job) -> Job:
    """The job that is shared."""
    return horovod_engine


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", ["given", "script", "bfloat16", "loop", "libra", "mg-wfbp"])
def test_weights_are_those_of_one_process(job: Job, case: str, rank: int) -> None:
    assert job.value(case, rank)["phase"] == "run"
    arrays = job.arrays(case, rank)
    tolerance = {"rtol": 2e-2, "atol": 1e-2} if case in ("bfloat16", "loop") else {"rtol": 1e-9}
    for key in [key for key in arrays if key.startswith("ours/")]:
        alone = arrays[key.replace("ours/", "alone/")]
        np.testing.assert_allclose(arrays[key], alone, err_msg=key, **tolerance)


@pytest.mark.parametrize("case", ["given", "script"])
def test_groups_and_their_order_are_the_plans(job: Job, case: str) -> None:
    value = job.value(case, 1)
    plan = Plan.from_json(value["plan"])
    wanted = [list(plan.tensor_names[group.start : group.stop]) for group in plan.groups]
    assert [group[:3] for group in value["reported"]] == [
        [index, group.num_threads, names]
        for index, (group, names) in enumerate(zip(plan.groups, wanted, strict=True))
    ]
    executed = value["executed"]
    assert [op for op, _, _ in executed.values()] == ["HorovodGroupedAllreduce"] * 3
    assert sorted(names for _, names, _ in executed.values()) == sorted(wanted)
    # Each waits for the one before it.
    node_of = {names[0]: node for node, (_, names, _) in executed.items()}
    chain = [node_of[names[0]] for names in wanted]
    for before, after in itertools.pairwise(chain):
        assert before in executed[after][2]
    assert NOT_EXECUTED not in job.log(case, 0) + job.log(case, 1)


def test_dtypes_unknown_to_horovod_are_sent_as_float32(job: Job) -> None:
    executed = job.value("bfloat16", 1)["executed"].values()
    assert sorted(op for op, _, _ in executed) == ["HorovodGroupedAllreduce"] * 3 + [
        "LibraAllReduce"
    ]
    assert "Horovod does not reduce bfloat16" in job.log("bfloat16")


@pytest.mark.parametrize("case", ["libra", "mg-wfbp"])
def test_plans_are_made_from_what_traces_show(job: Job, case: str) -> None:
    value = job.value(case)
    assert value["profiled"] and value["modelled"]
    # Thread counts that the backend cannot apply are not varied.
    assert len(set(value["samples"])) == 1
    assert len({group.num_threads for group in Plan.from_json(value["plan"]).groups}) == 1


@pytest.mark.parametrize("case", ["given", "libra"])
def test_explain_says_that_thread_counts_are_not_applied(job: Job, case: str) -> None:
    text = job.value(case)["explained"]
    reported = "thread counts are not applied: Horovod's Gloo takes no thread count"
    assert reported in " ".join(text.split())


@pytest.mark.parametrize("rank", RANKS)
def test_ranks_that_differ_in_engine_say_so(job: Job, rank: int) -> None:
    message = job.error("differ_in_engine", rank)
    assert "engine is 'lanes' on rank 0 and 'horovod' on rank 1" in message


@pytest.mark.parametrize("rank", RANKS)
def test_no_connection_is_opened(job: Job, rank: int) -> None:
    found = job.value("sockets", rank)
    assert found["horovod"] == 0
    assert found["lanes"] > 0


@pytest.mark.parametrize("rank", RANKS)
def test_error_of_all_ranks_ends_only_the_step(job: Job, rank: int) -> None:
    found = job.value("differ_in_strategy", rank)
    assert len(found["errors"]) == 2
    difference = "ValueError: the ranks do not agree, nothing was exchanged: strategy is "
    assert found["errors"][0].startswith(difference)
    assert difference in found["errors"][1]  # later calls repeat it
    assert found["horovod"] == len(RANKS)


@pytest.mark.parametrize("rank", RANKS)
def test_undecided_settings_are_chosen_and_logged(job: Job, rank: int) -> None:
    """On all ranks alike, whatever only one of them finds."""
    lanes, horovod = ["Engine"], ["HorovodControl"]
    assert job.value("auto", rank) == [lanes, horovod, lanes, horovod, lanes, horovod]
    log = " ".join(job.log("auto", rank).split()) if rank == 0 else ""
    reported = [
        "engine: lanes, since all ranks run on CPUs of one host",
        "engine: horovod, since gradients live on GPUs, and Horovod has NCCL",
        "engine: lanes, since rank 1 has no GPU, and so Horovod's NCCL cannot reach it",
        "descriptors, and rank 1 may have 100 (ulimit -n)",
        "engine: lanes, since horovod cannot (on rank 1: threads)",
        "engine: horovod, since rank 1 asks for it",
    ]
    assert rank or all(line in log for line in reported)


@pytest.mark.parametrize("rank", RANKS)
def test_ranks_may_join_and_go_on(job: Job, rank: int) -> None:
    assert job.value("joined", rank)


def plan_of_bytes(*num_bytes: int) -> Plan:
    return Plan(
        groups=(TensorGroup(0, 1, 1), TensorGroup(1, len(num_bytes), 1)),
        tensor_names=tuple(f"t{i}" for i in range(len(num_bytes))),
        num_bytes=num_bytes,
        num_workers=2,
        strategy="by hand",
    )


@pytest.mark.parametrize(
    ("environment", "warns"),
    [
        ({}, False),
        ({"HOROVOD_FUSION_THRESHOLD": str(3 * MIB)}, False),
        ({"HOROVOD_FUSION_THRESHOLD": str(3 * MIB - 511)}, False),  # rounded up
        ({"HOROVOD_FUSION_THRESHOLD": str(3 * MIB - 512)}, True),
        ({"HOROVOD_FUSION_THRESHOLD": "4MB"}, True),  # four bytes, to Horovod
        ({"HOROVOD_FUSION_THRESHOLD": "none"}, True),
        ({"HOROVOD_FUSION_THRESHOLD": "0"}, True),
        ({"HOROVOD_AUTOTUNE": "1"}, True),
        ({"HOROVOD_AUTOTUNE": "0"}, False),
    ],
)
def test_settings_that_cut_groups_are_named(environment: dict[str, str], warns: bool) -> None:
    found = horovod_backend.warnings(plan_of_bytes(MIB, 2 * MIB, MIB), environment)
    assert bool(found) == warns
    assert all(f"{3 * MIB}" in warning for warning in found)


def test_a_single_tensor_is_never_cut() -> None:
    plan = plan_of_bytes(8 * MIB, MIB, MIB)
    assert not horovod_backend.warnings(plan, {"HOROVOD_FUSION_THRESHOLD": str(2 * MIB)})


@pytest.mark.parametrize("rank", [0, 1])
def test_condition_of_one_rank_is_an_error_on_all(job: Job, rank: int) -> None:
    value = job.value("condition_of_one_rank", rank)
    vote = ["is true", "is false"][rank]
    for words in ("step 4 of Conditional.step: the condition '", f"{vote} on rank {rank}"):
        assert words in value["message"]
    assert all(value["same"])
