"""Comparison of what the ranks of a job have trained with what one process trains."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.model_parallel.job import metrics_alone
from tests.model_parallel.trained_model import Trained
from tests.worker_processes import Job

SAMPLES = 24


def read(value: Any) -> Any:
    return tf.convert_to_tensor(value).numpy()


def assert_close(
    actual: Any, wanted: Any, what: str, rtol: float = 1e-3, atol: float = 2e-4
) -> None:
    np.testing.assert_allclose(actual, wanted, rtol, atol, err_msg=what)


def check_results(job: Job, case: str, expected: list[dict[str, Any]]) -> None:
    for rank in range(job.world_size):
        for got, wanted in zip(job.value(case, rank)["returned"], expected, strict=True):
            assert got.keys() == wanted.keys()
            for name, value in wanted.items():
                assert_close(got[name], value, f"{case}: {name} on rank {rank}")


def check_variables(
    job: Job, case: str, expected: dict[str, np.ndarray], prefix: str = "", **tolerance: float
) -> None:
    """Compares the variables of all ranks, optimizer slots included.

    Args:
        job: the job.
        case: its case, which has saved the variables by their numbers.
        expected: variables by number and name.
        prefix: prefix of the saved numbers.
        **tolerance: see `assert_close`.
    """
    for rank in range(job.world_size):
        found = job.arrays(case, rank)
        for name, value in expected.items():
            number, _, _ = name.partition(" ")
            what = f"{case}: {prefix}{name} on rank {rank}"
            assert_close(found[prefix + number], value, what, **tolerance)


def without_metrics(variables: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Leaves out what accumulates each rank's own examples under data parallelism."""
    return {n: value for n, value in variables.items() if not n.endswith((" total", " count"))}


def check_metrics(job: Job, case: str, make: Callable[[], Trained], num_steps: int) -> None:
    """Compares the variables of the metric with those of each rank's own examples."""
    for rank in range(job.world_size):
        _, expected = metrics_alone(make, num_steps, SAMPLES, rank, job.world_size)
        arrays = job.arrays(case, rank)
        found = [arrays[str(number)] for number in range(len(arrays) - 1)][-len(expected) :]
        for actual, wanted in zip(found, expected, strict=True):
            assert_close(actual, wanted, f"{case}: metric of rank {rank}")
