"""Jobs that several modules look at."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launching import Job


@pytest.fixture(scope="session")
def plans(run_job: Callable[..., Job], plan_file: Path) -> Job:
    """The job of `jobs/plans.py`."""
    return run_job("plans.py", 2, str(plan_file))


@pytest.fixture(scope="session")
def trouble(run_job: Callable[..., Job], plan_file: Path) -> Job:
    """The job of `jobs/trouble.py`."""
    return run_job("trouble.py", 2, str(plan_file))
