"""Whole jobs: what a decorated step trains, under every strategy, plan and number of workers."""

import functools
from collections.abc import Callable

import numpy as np
import pytest

from tests.worker_processes import Job
from tf_libra import strategies
from tf_libra.runtime.plan_activation import NOT_EXECUTED
from tf_libra.specs.plan import Plan

# After 5 steps; the float32 models are compared again at the end, when rounding has added up.
TOLERANCES: dict[tuple[str, str], dict[str, float]] = {
    ("float64", "5"): {"rtol": 1e-9, "atol": 1e-12},
    ("float64", "end"): {"rtol": 1e-9, "atol": 1e-12},
    ("float32", "5"): {"rtol": 1e-5, "atol": 1e-7},
    ("float32", "end"): {"rtol": 1e-4, "atol": 1e-6},
}
RANDOM = tuple(f"random{seed}" for seed in range(4))


def cases_of(turn: int, in_float32: tuple[str, ...]) -> list[str]:
    """Each strategy and plan with one optimizer and one model, by turns, and some in float32.

    Strategies and plans do the same whatever the number of workers: what is trained with one
    optimizer by two workers is trained with the other by three. In the few steps that float32 is
    compared in, strategies do alike.
    """
    return [
        *(
            f"{made_by}-float64-{('sgd', 'adam')[(index // 2 + turn) % 2]}"
            for index, made_by in enumerate((*strategies.BY_NAME, *RANDOM))
        ),
        *(f"{made_by}-float32-sgd" for made_by in in_float32),
    ]


CASES_OF = {2: cases_of(1, ("wfbp", *RANDOM[1::2])), 3: cases_of(0, ("libra", *RANDOM[::2]))}


def each(cases: Callable[[str], bool] = lambda case: True) -> pytest.MarkDecorator:
    """Cases on all numbers of workers."""
    return pytest.mark.parametrize(
        ("place", "case"),
        [
            pytest.param(workers, case, id=f"{workers}workers-{case}")
            for workers, found in CASES_OF.items()
            for case in found
            if cases(case)
        ],
    )


@pytest.fixture(scope="session")
def job_of(run_job: Callable[..., Job]) -> Callable[[int], Job]:
    """Returns the job of a number of workers, which starts at the first request."""

    @functools.cache
    def get(workers: int) -> Job:
        chosen = " ".join(CASES_OF[workers])
        return run_job("equality.py", workers, env={"TF_LIBRA_JOB_CASES": chosen})

    return get


@pytest.fixture
def equality(job_of: Callable[[int], Job], place: int) -> Job:
    return job_of(place)


@each()
def test_trains_as_one_process_on_the_joint_batch_does(equality: Job, case: str) -> None:
    value = equality.value(case)
    saved = equality.arrays(case)
    dtype = "float64" if "float64" in case else "float32"
    with np.load(equality.folder / f"{value['alone']}.npz") as alone:
        assert len(alone) == len(saved) >= 12
        for name, expected in alone.items():
            when, _ = name.split("/", 1)
            assert saved[name].dtype == dtype
            np.testing.assert_allclose(
                saved[name], expected, **TOLERANCES[dtype, when], err_msg=name
            )
    if "float64" in case:
        assert value["phase"] == "run"


@each()
def test_every_rank_ends_with_the_same_bits(equality: Job, case: str) -> None:
    first = equality.arrays(case, 0)
    for rank in range(1, equality.world_size):
        other = equality.arrays(case, rank)
        assert first.keys() == other.keys()
        for name, value in first.items():
            assert value.tobytes() == other[name].tobytes(), name


@each(lambda case: "float64" in case)
def test_every_rank_follows_the_same_plan(equality: Job, case: str) -> None:
    plans = [
        Plan.from_json(equality.value(case, rank)["plan"]).fingerprint
        for rank in range(equality.world_size)
    ]
    assert len(set(plans)) == 1


@each()
def test_new_plans_take_effect_without_retracing(equality: Job, case: str) -> None:
    assert equality.value(case)["traces"] == 1


@each()
def test_executed_groups_are_those_of_the_plan(equality: Job, case: str) -> None:
    assert NOT_EXECUTED not in equality.log(case)
