"""Sends, receives and collectives in jobs, over Unix sockets and TCP."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.worker_processes import Job

JOBS: dict[str, tuple[int, dict[str, str]]] = {
    "unix": (2, {}),
    "tcp": (3, {"TF_LIBRA_INTERFACE": "lo"}),
}


@pytest.fixture(scope="module", params=JOBS)
def job(request: pytest.FixtureRequest, run_job: Callable[..., Job]) -> Job:
    world_size, env = JOBS[request.param]
    return run_job("collectives.py", world_size, env=env)


@pytest.mark.parametrize(
    "case",
    [
        "messages_of_every_dtype",
        "collectives_of_every_set",
        "integers_are_gathered_and_broadcast",
        "any_order_in_a_function",
        "stages_of_a_pipeline",
        "gradients_of_collectives",
        "in_a_loop",
    ],
)
def test_values_and_gradients(job: Job, case: str) -> None:
    for rank in range(job.world_size):
        value: Any = job.value(case, rank)
        found = value if isinstance(value, dict) else dict(enumerate(value))
        assert found
        assert [name for name, good in found.items() if good is not True] == []


def test_gradient_that_is_stopped_is_not_sent(job: Job) -> None:
    for rank in range(job.world_size):
        assert job.value("gradient_that_stays", rank) == 6.0


def test_gradient_by_way_of_an_anchor(job: Job) -> None:
    for rank in range(job.world_size):
        assert job.value("gradient_with_an_anchor", rank) == [2 * 5.0 * 3.0, 0.0]


def test_message_arrives_after_its_sender_has_ended(job: Job) -> None:
    assert job.value("last_tensor_of_a_rank", 1) is True


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("self", "to_rank must be a rank below {size} other than {rank}, got {rank}"),
        ("far", "from_rank must be a rank below {size} other than {rank}, got {size}"),
        ("negative", "to_rank must be a rank below {size} other than {rank}, got -1"),
        ("name", "name must be a text that is not empty, got ''"),
        ("shape", "shape must be fully known, got (None, 2)"),
        ("twice", "ranks must be different ranks, one at least, got ["),
        ("outside", "ranks must be below {size}, and {rank} one of them, got ["),
        ("none", "ranks must be different ranks, one at least, got []"),
        ("root", "root must be one of the ranks ("),
        ("op", "op must be 'sum' or 'average', got 'maximum'"),
        ("dtype", "dtype must be floating, got int32"),
        ("uneven", "needs a first dimension to divide, got ["),
        ("scalar", "needs a first dimension, got []"),
    ],
)
def test_argument_that_cannot_be_is_named(job: Job, name: str, said: str) -> None:
    for rank in range(job.world_size):
        value = job.value("arguments_that_cannot_be", rank)
        assert said.format(rank=rank, size=job.world_size) in value[name]
        assert value["works still"] is True


def test_unequal_shape_is_reported_on_both_sides(job: Job) -> None:
    for rank in (0, 1):
        error = job.error("other_shape", rank)
        assert error.startswith("FailedPreconditionError: ")
        assert "'h' is float [" in error
        assert "[2,3]" in error
        assert "[3,2]" in error
    if job.world_size > 2:
        assert "'h' is float [" in job.error("other_shape", 2)


def test_another_collective_is_reported_on_all_ranks(job: Job) -> None:
    for rank in range(job.world_size):
        error = job.error("other_collective", rank)
        assert "all_reduce (sum) of float [2] over ranks 0, 1" in error
        assert "all_gather of float [2] over ranks 0, 1" in error


def test_another_name_is_reported_at_the_deadline(job: Job) -> None:
    for rank in range(job.world_size):
        error = job.error("other_name", rank)
        assert "'activation'" in error
        assert "'activations'" in error
        assert "waited 3 s for rank " in error
        assert "TF_LIBRA_TIMEOUT_SECONDS" in error


def test_no_rank_waits_for_a_failing_step(job: Job) -> None:
    assert "bad input" in job.error("step_that_fails", 0)
    assert "a step failed while it waited" in job.error("step_that_fails", 1)
    if job.world_size > 2:
        assert job.value("step_that_fails", 2) is None
