"""`fit` of two workers under every family of `auto`, against one process."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.worker_processes import Job


@pytest.fixture(scope="module")
def job(run_job: Callable[..., Job]) -> Job:
    return run_job("fit_families.py", 2)


def reference(job: Job, case: str) -> Any:
    """Returns what one process alone has trained for a case."""
    return json.loads((job.folder / f"alone.{case}.json").read_text())


def assert_all_close(found: Any, wanted: Any) -> None:
    tf.nest.assert_same_structure(found, wanted)
    for actual, expected in zip(tf.nest.flatten(found), tf.nest.flatten(wanted), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("rank", range(2))
@pytest.mark.parametrize("model", ["two_ends", "own_step"])
def test_every_family_fits_as_data_parallelism_does(job: Job, model: str, rank: int) -> None:
    """To the weights of one process, with metrics of each rank's own examples."""
    fits, alone = job.value(f"families_{model}", rank), reference(job, f"families_{model}")
    usual = fits["data"]
    assert set(fits) == {"data", "one-rank", "spp", "deeppool"}
    for fitted in fits.values():
        assert_all_close(fitted["weights"], alone["weights"])
        assert_all_close(fitted["evaluated"], alone["evaluated"])
        assert_all_close(fitted["history"], usual["history"])


@pytest.mark.parametrize("rank", range(2))
def test_callbacks_see_what_one_process_has_through_trials_of_families(job: Job, rank: int) -> None:
    """Also checkpoints and weights that one rank alone reads, and ranks with fewer batches.

    When step times change, graphs of several steps, too, are followed by trials.
    """
    fitted, alone = job.value("family_trials", rank), reference(job, "family_trials")
    assert fitted["plans"] == ["Plan", "PipelinePlan", "BurstPlan"], fitted["explained"]
    assert fitted["plan"] == "OneRankPlan", fitted["explained"]
    for family in ("one-rank", "spp", "deeppool"):
        assert f"{family} is left out" not in fitted["explained"]
    for name in ("history", "restored", "uneven", "drifted", "saved" if rank == 0 else "record"):
        assert_all_close(fitted[name], alone[name])
    assert len(alone["history"]["loss"]) == 10  # stopped early
    rates = alone["history"]["learning_rate"]
    assert rates[0] > 2 * rates[-1]
