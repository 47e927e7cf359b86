"""One rank trains the joint batch of several workers, from an unchanged script."""

import json
import re
import signal
from collections.abc import Callable

import numpy as np
import pytest

from tests.model_parallel import models
from tests.model_parallel.job import batches, cached_model, train_alone
from tests.model_parallel.job_results import (
    SAMPLES,
    assert_close,
    check_results,
    check_variables,
    read,
    without_metrics,
)
from tests.worker_processes import Job, launched
from tf_libra.model_parallel.planning.one_rank import fastest_rank_plan
from tf_libra.specs.one_rank import OneRankPlan

GIVEN = ("mlp", "convolutional", "sparsely_embedded", "normalized")
JOB = "one_rank.py"


@pytest.fixture(params=[2, 3])
def trained(request: pytest.FixtureRequest, job_of: Callable[[int], Job]) -> Job:
    return job_of(request.param)


@pytest.mark.parametrize(
    ("trained", "model"), [*((2, model) for model in GIVEN), (3, GIVEN[0])], indirect=["trained"]
)
def test_one_rank_trains_like_one_process(trained: Job, model: str) -> None:
    """Rank 0 computes, saves and restores alone; all ranks read without synchronization."""
    expected, variables = train_alone(getattr(models, model), 3, SAMPLES, 1)
    check_results(trained, f"given {model}", expected)
    check_variables(trained, f"given {model}", variables)
    for rank in range(trained.world_size):
        assert trained.value(f"given {model}", rank)["was_current"]


@pytest.mark.parametrize(
    ("trained", "case", "num_readers", "num_microbatches"),
    [
        (2, "read on rank 0", 1, 1),
        *(
            (world_size, *case)
            for world_size in (2, 3)
            for case in (
                ("read on the last rank", 1, 1),
                ("read in a pipeline", 2, 2),
                ("read in bursts", 2, 1),
            )
        ),
    ],
    indirect=["trained"],
)
def test_one_rank_alone_reads_values_after_the_last_step(
    trained: Job, case: str, num_readers: int, num_microbatches: int
) -> None:
    """Ranks that read take turns; a pipeline of three ranks has replicas, which sum metrics."""
    last = trained.world_size - 1
    readers = [0, last] if num_readers == 2 else [0 if case == "read on rank 0" else last]
    means = trained.value(case, 0)
    assert len(means) == 6
    turns = [(name, reader) for name in means for reader in readers]
    for num_steps, (name, reader) in enumerate(turns, start=1):
        found = trained.arrays(case, reader)
        _, expected = train_alone(models.mlp, num_steps, SAMPLES, num_microbatches)
        for number, (variable, value) in enumerate(expected.items()):
            assert_close(found[f"{name} {number}"], value, f"{case}: {name}: {variable}")


def test_reads_ignore_what_the_training_rank_changes_after_the_step(trained: Job) -> None:
    """A function of tf.data, which reads at any time, gets values after every step."""
    for rank in range(trained.world_size):
        value = trained.value("changed_between", rank)
        assert value["read"] == [
            [[0.0] * 4, [1.0, 0, 0, 0]],
            [[0.0, -1, -1, -1], [1.0, -2, -2, -2]],
        ]
        assert value["in_dataset"] == [[0.0] * 4, [0.0, -1, -1, -1]]


def test_variables_outlive_the_function_on_the_training_rank(trained: Job) -> None:
    last = trained.world_size - 1
    assert trained.case("dropped", 0)["error"] is None
    _, expected = train_alone(models.mlp, 2, SAMPLES, 1)
    found = trained.arrays("dropped", last)
    for name, value in expected.items():
        number, _, _ = name.partition(" ")
        assert_close(found[number], value, name)


def test_steps_measure_every_rank_and_train_on_a_fast_one(trained: Job) -> None:
    """Rank 0, which is preferred otherwise, is slow."""
    num_steps = 3 * trained.world_size + 2
    expected, variables = train_alone(models.mlp, num_steps, SAMPLES, 1)
    check_results(trained, "measured", expected)
    check_variables(trained, "measured", variables)
    for rank in range(trained.world_size):
        value = trained.value("measured", rank)
        assert value["phases"] == ["measure"] * (num_steps - 2) + ["run"] * 2
        assert value["settled"] == [False] * (num_steps - 2) + [True] * 2
        assert value["plan"] == trained.value("measured", 0)["plan"]
    plan = OneRankPlan.from_document(value["plan"])
    assert plan == fastest_rank_plan(plan.seconds) and plan.rank != 0
    assert plan.num_workers == len(plan.seconds) == trained.world_size
    computing = trained.value("measured", plan.rank)["explained"].splitlines()
    assert f"rank {plan.rank} trains the joint batch" in computing[0]
    assert computing[-1].startswith("last step: ")


def test_ranks_measure_links_of_several_hosts_and_of_one(trained: Job) -> None:
    """Two ranks of three hosts pair up at a time; on one host two ranks stand for all."""
    size = trained.world_size
    for rank in range(size):
        links = trained.value("measured", rank)["links"]
        assert links == trained.value("measured", 0)["links"]
        for rates, latency in links:
            array = np.array(rates)
            assert (array == array.T).all() and np.count_nonzero(array) == size * (size - 1)
            assert array.max() < 1e12 and 0 < latency < 1
        assert len({*np.ravel(links[1][0])} - {0.0}) == 1


@pytest.mark.parametrize("how", ["end", "stages", "fail", "kill", "stop"])
def test_reads_of_a_rank_that_has_left(run_job: Callable[..., Job], how: str) -> None:
    """A script that ends hands its values over. After a failure every read raises, and names it.

    A rank that is stopped is waited for until the deadline.
    """
    job = run_job("one_rank_ends.py", 2, how, check=False, launcher=launched)
    assert job.returncodes[1] == 0, job.output(1)
    assert "no engine is running" not in job.output(0) + job.output(1)
    result = json.loads((job.folder / "result.1.json").read_text())
    if how in ("end", "stages"):
        last = 3 if how == "end" else [-3.0, -3.0]
        assert result["errors"] == []
        assert result["values"] == [[-2.0, -1.0], [-2.0, -1.0], last]
        return
    assert result["values"] == []
    kinds = [kind for kind, _ in result["errors"]]
    assert kinds == ["UnavailableError", "FailedPreconditionError", "UnavailableError"]
    for _, message in result["errors"]:
        assert "rank 0" in message
    if how == "stop":
        _, message = result["errors"][0]
        assert re.search(r"rank 1.* waited 10 s for rank(\(s\))? 0", message), message
        assert 9 < result["seconds"][0] < 60


def test_rank_that_dies_in_a_switch_between_families_ends_the_job(
    run_job: Callable[..., Job],
) -> None:
    """One of two variables has been sent. The next call raises the same error."""
    job = run_job("one_rank_ends.py", 2, "switch", check=False, launcher=launched)
    assert job.returncodes == (-signal.SIGKILL, 0), job.output(1)
    result = json.loads((job.folder / "result.1.json").read_text())
    assert len(result["synchronized"]) == 2 and result["done"] > 8
    assert [kind for kind, _ in result["errors"]] == ["UnavailableError"] * 2
    assert all("rank 0" in message for _, message in result["errors"])
    assert result["times"][0] - json.loads((job.folder / "incident.0.json").read_text()) < 60


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_other_functions_continue_with_current_variables(trained: Job) -> None:
    """A model changes between data parallelism and one rank, which is not always the same."""
    _, variables = train_alone(models.convolutional, 8, SAMPLES, 1)
    check_variables(trained, "alternating", without_metrics(variables))


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_transfer_that_fails_between_families_ends_the_job_on_all_ranks(trained: Job) -> None:
    """The error names both ranks and the variable."""
    for rank in range(trained.world_size):
        error = trained.error("failing_transfer", rank)
        assert "rank 1 cannot receive " in error and "variable weight" in error
        assert "from rank 0: ResourceExhaustedError: no memory" in error
        assert ("rank 1 gave up" in error) is (rank == 0)


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_step_leaves_variables_of_another_trace_to_the_function_that_trained_them(
    trained: Job,
) -> None:
    """The first function has trained slot "a" before the second one did, and then trains "b"."""
    weight, slots = np.array([1.0, 2.0]), {"a": 0.0, "b": 0.0}
    for name in "aababab":
        slots[name] = 0.5 * slots[name] + 0.5
        weight -= slots[name]
    expected = [weight, [slots["a"]] * 2, [slots["b"]] * 2]
    for rank in range(2):
        for found, wanted in zip(trained.value("slots_in_turn", rank), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_evaluation_and_other_batch_sizes_are_of_the_joint_batch(trained: Job) -> None:
    alone = cached_model(models.counted, -1).trained
    first, second = batches(2, SAMPLES)
    half = [part[: SAMPLES // 2] for part in second]
    expected = []
    for batch, flag in ((first, {}), (second, {"training": False}), (half, {})):
        returned = alone.flagged(*batch, **flag)
        expected.append({name: read(value) for name, value in returned.items()})
    check_results(trained, "evaluated", expected)
    every = {str(i): read(variable) for i, variable in enumerate(alone.every_variable)}
    check_variables(trained, "evaluated", every)


def test_step_without_results_trains(trained: Job) -> None:
    mean = (trained.world_size - 1) / 2
    for rank in range(trained.world_size):
        assert trained.value("nothing_returned", rank) == pytest.approx(1 - 20 * mean)


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("no such rank", "rank must be "),
        ("text_returned", "dtype is string"),
        ("text_kept", "which cannot be sent to other ranks: its dtype is string"),
        ("another_dtype", "arguments[0] is 'float32 (2,)' on rank 0 and 'float64 (2,)' on rank "),
        ("another_size", "arguments[0] is 'float32 (4,)' on rank 0 and 'float32 (2,)' on rank "),
    ],
)
def test_step_that_cannot_run_raises_on_every_rank(trained: Job, case: str, named: str) -> None:
    for rank in range(trained.world_size):
        error = trained.error(case, rank)
        assert error.startswith("ValueError: ") and named in error
