"""Plans that cut tensors, on real workers."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.runtime.sparse_averages import check_sparse_averages
from tests.worker_processes import Job
from tf_libra.runtime.plan_activation import NOT_EXECUTED

# Each dtype on an even and an odd number of workers: how tensors are cut depends on neither.
WORKERS = {"float16": (2, 3), "bfloat16": (3, 4), "float32": (4, 5), "float64": (5, 2)}
MOST_WORKERS = 5


@pytest.fixture(scope="module")
def parts(run_job: Callable[..., Job]) -> Job:
    """Even and odd numbers of workers, and more than there are elements in some parts."""
    return run_job("split_tensors.py", MOST_WORKERS)


@pytest.mark.parametrize(
    ("dtype", "size"), [(dtype, size) for dtype, sizes in WORKERS.items() for size in sizes]
)
def test_averages_are_right_wherever_tensors_are_cut(parts: Job, dtype: str, size: int) -> None:
    for rank in range(parts.world_size):
        assert parts.value(f"cut_{dtype}_{size}", rank) == []


@pytest.mark.parametrize("size", [4, 5])
def test_averages_of_rows_are_those_of_dense_gradients(parts: Job, size: int) -> None:
    check_sparse_averages(parts, size)


@pytest.mark.parametrize("case", ["trained_in_parts", "gradients_that_differ_from_call_to_call"])
def test_training_in_parts_is_training_as_one_process(parts: Job, case: str) -> None:
    first = parts.arrays(case, 0)
    for rank in range(parts.world_size):
        assert parts.value(case, rank) == {"plan": True, "cut": True}
        assert NOT_EXECUTED not in parts.log(case, rank)
        saved = parts.arrays(case, rank)
        for name in [name for name in saved if name.startswith("ours/")]:
            assert saved[name].tobytes() == first[name].tobytes()
            alone = saved[name.replace("ours/", "alone/")]
            np.testing.assert_allclose(saved[name], alone, rtol=1e-9, atol=1e-12, err_msg=name)
