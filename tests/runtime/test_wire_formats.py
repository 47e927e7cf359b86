"""Plans that round float32 gradients between ranks, on real workers."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.runtime.sparse_averages import check_sparse_averages
from tests.worker_processes import Job
from tf_libra.specs.plan import WIRE_DTYPES

NUM_WORKERS = 3


@pytest.fixture(scope="module")
def formats(run_job: Callable[..., Job]) -> Job:
    return run_job("wire_formats.py", NUM_WORKERS)


@pytest.mark.parametrize("size", range(1, NUM_WORKERS + 1))
@pytest.mark.parametrize("wire_dtype", WIRE_DTYPES)
def test_sums_are_those_of_numpy(formats: Job, wire_dtype: str, size: int) -> None:
    for rank in range(NUM_WORKERS):
        assert formats.value(f"sums_{wire_dtype}_{size}", rank) == []


@pytest.mark.parametrize("wire_dtype", WIRE_DTYPES)
def test_training_has_equal_bits_and_the_loss_of_float32(formats: Job, wire_dtype: str) -> None:
    case = f"trained_{wire_dtype}"
    first = formats.arrays(case, 0)
    for rank in range(NUM_WORKERS):
        value = formats.value(case, rank)
        saved = formats.arrays(case, rank)
        assert {name: saved[name].tobytes() for name in saved} == {
            name: first[name].tobytes() for name in first
        }
        assert not value["exact"]
        assert wire_dtype in value["explained"] and "lossy" in value["explained"]
        ours, alone = np.array(value["losses"]).T
        assert alone[-1] < 0.8 * alone[0]
        np.testing.assert_allclose(ours, alone, rtol=0.03)


def test_error_feedback_recovers_lost_updates(formats: Job) -> None:
    first = formats.arrays("feedback_recovers_updates", 0)
    for rank in range(NUM_WORKERS):
        saved = formats.arrays("feedback_recovers_updates", rank)
        assert all(np.array_equal(saved[name], first[name]) for name in saved)
        value = formats.value("feedback_recovers_updates", rank)
        assert "error_feedback" in value["explained"]
    exact = first["exact"]
    assert np.all(exact < -15)
    # Without feedback only ranks without the large gradient move the weights, and in large steps.
    assert np.all(np.abs(first["alone"] - exact) > 4)
    assert np.all(np.abs(first["feedback"] - exact) <= value["bound"])


def test_error_feedback_leaves_other_formats_alone(formats: Job) -> None:
    for rank in range(NUM_WORKERS):
        value = formats.value("float32_has_no_feedback", rank)
        assert value == {"same": True, "same_wide": True, "states": [{}, {}, {}]}


def test_checkpoint_contains_error_feedback(formats: Job) -> None:
    for rank in range(NUM_WORKERS):
        value = formats.value("checkpoint_of_feedback", rank)
        assert value["same"] == [True, True]
        # Rank 0's errors are those of rank 0 alone.
        assert value["of_first"] == ([] if rank else ["bias", "weight"])


@pytest.mark.parametrize("size", range(1, NUM_WORKERS + 1))
def test_averages_of_rows_are_those_of_dense_gradients(formats: Job, size: int) -> None:
    check_sparse_averages(formats, size)


def test_rows_of_a_broken_peer_are_an_error(formats: Job) -> None:
    for rank in range(NUM_WORKERS):
        value = formats.value("rows_of_a_broken_peer", rank)
        assert value["next"] == [2, 1] * NUM_WORKERS
        if rank == 1:  # the broken one
            continue
        assert len(value["errors"]) == 2 * 15
        assert all("table" in message for message in value["errors"])
        assert ["ids" in message for message in value["errors"]] == 2 * (7 * [False] + 8 * [True])


def test_tuning_tries_both_formats(formats: Job) -> None:
    first = formats.arrays("tuned", 0)
    for rank in range(NUM_WORKERS):
        value = formats.value("tuned", rank)
        assert set(value["tried"]) == {None, "bfloat16"}
        assert value["lossy"] == (value["active"] == "bfloat16")
        assert value["rounding"] > 0
        saved = formats.arrays("tuned", rank)
        assert all(np.array_equal(saved[name], first[name]) for name in saved)


def test_ranks_that_request_different_formats_say_so(formats: Job) -> None:
    for rank in range(NUM_WORKERS):
        error = formats.error("requested_differently", rank)
        assert error.startswith("ValueError: ")
        assert "wire_dtype" in error
