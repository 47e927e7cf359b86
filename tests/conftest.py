"""Fixtures that every room's tests may use."""

import contextlib
from collections.abc import Callable

import pytest

from tests.launching import DEADLINE_SECONDS, TAIL, Job, Workers, running_workers


@pytest.fixture(scope="session")
def run_job(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """A function that runs a job script to its end: `run_job(script, world_size, *args, env=)`.

    Every worker must end with 0, unless `check` is false.
    """

    def run(
        script: str,
        world_size: int,
        *args: str,
        env: dict[str, str] | None = None,
        check: bool = True,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> Job:
        folder = tmp_path_factory.mktemp(script.removesuffix(".py"))
        with running_workers(script, world_size, folder, *args, env=env) as workers:
            workers.wait(deadline_seconds)
            job = workers.job()
        if check and any(job.returncodes):
            pytest.fail(
                f"{script}: workers ended with {job.returncodes}\n"
                + "\n".join(f"--- rank {r}\n{job.output(r)[-TAIL:]}" for r in range(world_size))
            )
        return job

    return run


@pytest.fixture(scope="session")
def start_workers() -> Callable[..., contextlib.AbstractContextManager[Workers]]:
    """`running_workers`, for tests that interfere while a job runs."""
    return running_workers
