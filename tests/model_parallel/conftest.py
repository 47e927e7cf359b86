"""Fixtures of the tests of pipelines and bursts."""

import functools
from collections.abc import Callable

import pytest

from tests.worker_processes import Job


@pytest.fixture(scope="session")
def cached_models() -> None:
    """Keeps modules in one process that train the cached models of `job.py`, whose traces cost."""


@pytest.fixture(scope="module")
def job_of(request: pytest.FixtureRequest, run_job: Callable[..., Job]) -> Callable[[int], Job]:
    """Returns the job of a number of workers, which run the module's `JOB`.

    A fixture with parameters would run it again for tests that choose some of them.
    """
    return functools.cache(lambda world_size: run_job(request.module.JOB, world_size))
