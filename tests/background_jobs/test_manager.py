"""Background jobs concurrent with training on two workers, and jobs that are rejected."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tf_libra
from tests.worker_processes import Job, launched
from tf_libra.background_jobs import manager
from tf_libra.reporting.report.logdir_source import LogdirSource
from tf_libra.reporting.tensorboard.queries import runs

RANKS = [0, 1]


@pytest.fixture(scope="module")
def background_jobs(run_job: Callable[..., Job]) -> Job:
    """The job of `jobs/background.py`."""
    return run_job("background.py", 2)


@pytest.mark.parametrize("case", ["command", "function_of_a_module"])
@pytest.mark.parametrize("rank", RANKS)
def test_job_runs_concurrently_and_training_is_unchanged(
    background_jobs: Job, case: str, rank: int
) -> None:
    saved = background_jobs.arrays(case, rank)
    ours = {name: value for name, value in saved.items() if name.startswith("ours/")}
    assert ours
    for name, value in ours.items():
        np.testing.assert_allclose(value, saved[name.replace("ours/", "alone/")], rtol=1e-9)
    reported = background_jobs.value(case, rank)
    assert reported["count"] > 0
    assert reported["rank"] == str(rank)
    assert reported["horovod"] is None
    assert "settled steps" in reported["described"]
    lines = reported["explained"].splitlines()
    assert any(line.startswith("background: ") for line in lines)
    assert max(map(len, lines)) <= 100


def test_every_rank_writes_the_statistics_of_its_job(background_jobs: Job) -> None:
    found = runs(LogdirSource.read(background_jobs.folder / "logdir"))["backgrounds"]
    assert [(entry["run"], entry["rank"]) for entry in found] == [("rank_0", 0), ("rank_1", 1)]
    for job in found:
        assert "tf_libra.background_jobs.step_counter" in job["command"]
        assert 0 < job["share_of_steps"] < 1
        assert job["max_slowdown"] == 0.5


@pytest.mark.parametrize("rank", RANKS)
def test_does_not_run_while_something_is_measured(background_jobs: Job, rank: int) -> None:
    assert background_jobs.value("not_while_tuning", rank) == {"tuned": True, "started": False}


@pytest.mark.parametrize("rank", RANKS)
def test_failure_is_logged_and_leaves_training_alone(background_jobs: Job, rank: int) -> None:
    value = background_jobs.value("one_that_fails", rank)
    assert value["over"]
    # Rank 0 alone speaks at level info; a warning is of its own rank.
    assert "status 3" in background_jobs.log("one_that_fails", rank)


def test_two_concurrent_jobs_are_rejected(background_jobs: Job) -> None:
    assert "background: " in background_jobs.error("two_jobs", 0)


def test_example_trains_in_bursts_with_a_background_job(run_job: Callable[..., Job]) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "burst_digits.py"
    output = run_job(str(example), 2, "--epochs=3", launcher=launched).output(0)
    assert "a burst plan under deeppool, amplification at most 1.5" in output
    assert re.search(r"measured iteration: .*\npredicted iteration: ", output)
    assert re.search("ran (during|in the gaps of) .* of the settled steps", output)
    assert "test accuracy: " in output


def test_invalid_background_job_is_rejected() -> None:
    for step, message in (
        ("", "step must be a command line"),
        ("'unclosed", "step must be a command line"),
        ([], "background must be a command"),
        ("absent-program --fast", "step must be .* no program 'absent-program'"),
        (["absent-program"], "background must be .* no program 'absent-program'"),
        (lambda: None, "must be a function of a module that can be imported"),
    ):
        with pytest.raises(ValueError, match=message):
            tf_libra.background(step)
    with pytest.raises(ValueError, match="max_slowdown must be"):
        tf_libra.background("true", max_slowdown=0)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TF_LIBRA_BACKGROUND": ""}, "TF_LIBRA_BACKGROUND must be a command line"),
        ({"TF_LIBRA_BACKGROUND": "/absent/one -x"}, "TF_LIBRA_BACKGROUND must be .* '/absent/one'"),
        (
            {"TF_LIBRA_BACKGROUND": "true", "TF_LIBRA_BACKGROUND_MAX_SLOWDOWN": "no"},
            "max_slowdown must be a share above 0, got 'no'",
        ),
    ],
)
def test_environment_is_checked(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        manager.from_environment(environment)


def test_no_requested_job_starts_none() -> None:
    assert manager.from_environment({}) is None


def test_requested_values_have_limits() -> None:
    environment: dict[str, Any] = {
        "TF_LIBRA_BACKGROUND": "python other.py --fast",
        "TF_LIBRA_BACKGROUND_MAX_SLOWDOWN": "0.2",
    }
    found = manager.from_environment(environment)
    assert found is not None
    assert found.throttle.max_slowdown == 0.2
    assert "'python other.py --fast'" in found.describe()
