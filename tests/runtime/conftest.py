"""Jobs that several modules look at."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launching import Job
from tf_libra.plan import Plan, TensorGroup

SHAPES = {"b2": 5, "w2": 9 * 5, "b1": 9, "w1": 16 * 9, "b0": 16, "w0": 12 * 16}


@pytest.fixture(scope="session")
def three_groups() -> Plan:
    """Three groups with threads (1, 2, 1) for two workers and `models.HandWritten` in float32."""
    return Plan(
        groups=(TensorGroup(0, 2, 1), TensorGroup(2, 4, 2), TensorGroup(4, 6, 1)),
        tensor_names=tuple(SHAPES),
        num_bytes=tuple(4 * elements for elements in SHAPES.values()),
        num_workers=2,
        strategy="by hand",
        dtypes=("float32",) * len(SHAPES),
    )


@pytest.fixture(scope="session")
def plan_file(three_groups: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(three_groups.to_json())
    return path


@pytest.fixture(scope="session")
def plans(run_job: Callable[..., Job], plan_file: Path) -> Job:
    """The job of `jobs/plans.py`."""
    return run_job("plans.py", 2, str(plan_file))


@pytest.fixture(scope="session")
def trouble(run_job: Callable[..., Job], plan_file: Path) -> Job:
    """The job of `jobs/trouble.py`."""
    return run_job("trouble.py", 2, str(plan_file))
