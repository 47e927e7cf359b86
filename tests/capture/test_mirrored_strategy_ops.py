"""Steps of a MultiWorkerMirroredStrategy under plans, in jobs that know nothing of Horovod."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.worker_processes import Job, under_tf_config
from tf_libra.capture.mirrored_strategy_ops import reject_several_replicas
from tf_libra.runtime.plan_activation import NOT_EXECUTED
from tf_libra.specs.plan import Plan

DENSE = ["b2", "w2", "b1", "w1", "b0", "w0"]


@pytest.fixture(scope="module")
def job(run_job: Callable[..., Job]) -> Job:
    return run_job("multi_worker.py", 2, launcher=under_tf_config)


def check_weights(job: Job, case: str, num_trained: int | None = None) -> None:
    """Ours are those of the plain strategy up to rounding, and the same bits on every rank.

    What follows the first `num_trained` may be each rank's own.
    """
    first = job.arrays(case, 0)
    names = [name.removeprefix("ours/") for name in first if name.startswith("ours/")]
    assert names
    for rank in range(job.world_size):
        arrays = job.arrays(case, rank)
        for name in names:
            np.testing.assert_allclose(
                arrays[f"ours/{name}"], arrays[f"plain/{name}"], rtol=2e-4, atol=2e-6
            )
            if num_trained is None or int(name) < num_trained:
                np.testing.assert_array_equal(arrays[f"ours/{name}"], first[f"ours/{name}"])
        if "losses" in arrays:
            np.testing.assert_allclose(arrays["losses"], arrays["plain_losses"], rtol=1e-4)


def planned(job: Job, case: str, rank: int = 0) -> list[str]:
    """Names of the tensors of a case's plan, which is active on this rank."""
    value = job.value(case, rank)
    assert value["phase"] == "run"
    assert value["horovod"] == []
    assert NOT_EXECUTED not in job.log(case, rank)
    return list(Plan.from_json(value["plan"]).tensor_names)


@pytest.mark.parametrize("case", ["hand_written", "under_a_given_plan", "called_in_the_scope"])
def test_step_trains_as_under_the_plain_strategy_and_a_plan(job: Job, case: str) -> None:
    check_weights(job, case)
    for rank in range(2):
        assert sorted(planned(job, case, rank)) == sorted(DENSE)


def test_auto_compares_data_parallel_plans_alone(job: Job) -> None:
    """And `explain` says why, of every other family, as soon as they are compared."""
    check_weights(job, "by_auto")
    for rank in range(2):
        assert sorted(planned(job, "by_auto", rank)) == sorted(DENSE)
        assert job.value("by_auto", rank)["num_tuning_steps"] == 8
        explained = " ".join(job.value("by_auto", rank)["explained"].split())
        for family in ("one-rank", "spp", "deeppool"):
            assert f"{family} is left out: MultiWorkerMirroredStrategy " in explained


def test_user_provided_plan_is_active(job: Job) -> None:
    plan = Plan.from_json(job.value("under_a_given_plan", 1)["plan"])
    assert [group.num_threads for group in plan.groups] == [1, 3]
    assert list(plan.tensor_names) == DENSE


@pytest.mark.parametrize(
    "case",
    [
        "clipped",
        "clipped_after",
        "averaged",
        "in_functions",
        "scaled",
        "scaled_by_an_optimizer",
        "iterator",
    ],
)
def test_gradients_are_planned_whatever_is_made_of_them(job: Job, case: str) -> None:
    check_weights(job, case)
    assert sorted(planned(job, case)) == sorted(DENSE)


def test_step_ends_with_the_data_on_every_rank(job: Job) -> None:
    for rank in range(2):
        plain, ours = job.value("iterator", rank)["counts"]
        assert plain == ours > 9


def test_several_optimizers_reduce_each_their_own(job: Job) -> None:
    check_weights(job, "two_optimizers")
    assert sorted(planned(job, "two_optimizers")) == sorted([*DENSE, "w0#1", "b0#1"])


def test_sparse_gradients_stay_with_the_strategy(job: Job) -> None:
    check_weights(job, "table")
    assert sorted(planned(job, "table")) == ["kernel", "temperature"]
    assert (
        "MultiWorkerMirroredStrategy reduces the gradient of 'table' as the script says"
        " (IndexedSlices)" in job.log("table")
    )


def test_sparse_gradients_that_are_made_dense_are_planned(job: Job) -> None:
    check_weights(job, "table_made_dense")
    assert sorted(planned(job, "table_made_dense")) == ["kernel", "table", "temperature"]


def test_statistics_and_metrics_stay_with_the_strategy(job: Job) -> None:
    check_weights(job, "normalized", num_trained=6)
    assert len(planned(job, "normalized")) == 6


@pytest.mark.parametrize("case", ["keras_fit", "keras_several_steps", "tf_keras_fit"])
def test_fit_trains_as_under_the_plain_strategy_and_a_plan(job: Job, case: str) -> None:
    check_weights(job, case)
    assert len(planned(job, case)) == 6
    first, second = (job.value(case, rank)["history"] for rank in range(2))
    assert first == second
    assert len(first["loss"]) == 3
    if case != "tf_keras_fit":
        np.testing.assert_allclose(first["val_loss"][-1], job.value(case)["evaluated"], rtol=1e-4)


def test_several_replicas_in_a_worker_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"^step.*2.*\(a, b\)"):
        reject_several_replicas("step", ["a", "b"])
    reject_several_replicas("step", ["a"])


def test_example_trains(run_job: Callable[..., Job]) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "multi_worker_digits.py"
    output = run_job(str(example), 2, "--epochs=2", launcher=under_tf_config).output(0)
    assert "accuracy" in output


def test_checkpoint_brings_back_what_was(job: Job) -> None:
    for rank in range(2):
        assert job.value("checkpoint", rank) == [True] * 6


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("reduces_nothing", ["all-reduce no gradient of a variable", "optimizer.apply_gradients"]),
        ("decorated_in_the_replica", ["decorate the tf.function that calls strategy.run"]),
        ("engine_of_horovod", ["engine must be 'lanes'", "got 'horovod'"]),
        ("pipeline", ["Spp(", "a strategy of data parallelism"]),
        ("joined", ["join: MultiWorkerMirroredStrategy", "equally many batches"]),
    ],
)
def test_unsupported_step_is_rejected_by_name_on_every_rank(
    job: Job, case: str, words: list[str]
) -> None:
    for rank in range(2):
        error = job.error(case, rank)
        assert error.startswith("ValueError: ")
        for word in words:
            assert word in error


def test_step_with_what_is_no_number_is_undone(job: Job) -> None:
    for rank in range(2):
        value = job.value("gradient_that_is_no_number", rank)
        assert "is not finite on rank 1" in value["message"]
        assert value["same"]


@pytest.mark.parametrize(
    ("case", "scale", "updates"),
    [("overflow_of_one_worker", 16.0, 7), ("overflow_of_one_worker_in_fit", 8.0, 9)],
)
def test_overflow_of_one_worker_lowers_the_scale_on_all(
    job: Job, case: str, scale: float, updates: int
) -> None:
    check_weights(job, case)
    for rank in range(2):
        value = job.value(case, rank)
        assert (value["scale"], value["updates"]) == (scale, updates)
        assert len(planned(job, case, rank)) == 6


def test_worker_that_gives_up_is_named_to_the_others(job: Job) -> None:
    assert "UnavailableError" in job.value("one_worker_gives_up", 0)
    assert "rank 1" in job.value("one_worker_gives_up", 0)
    assert "UnavailableError" not in job.value("one_worker_gives_up", 1)
