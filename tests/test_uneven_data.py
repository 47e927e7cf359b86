"""Ranks with different numbers of batches train as one process does with each batch there is."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import tf_libra
from tests.forkserver import Nursery
from tests.worker_processes import DEADLINE_SECONDS, Job, launched, running_workers, wait_until
from tf_libra.capture.gradient_weight import is_joined
from tf_libra.coordination import current_job
from tf_libra.uneven_data import _length

RANKS = [0, 1, 2]
LAST = RANKS[-1]
# What a rank has fewer than the one with most of them.
MISSING = [5, 0, 1]
REJECTED = {
    "no_batch": "rank 0",
    "no_batch_of_unknown_number": "rank 0",
    "in_a_pipeline": "tf_libra.join",
    "averaged_inside": "inner_gradients",
    "per_example": "gradients per example",
}


@pytest.fixture(scope="module")
def trained(run_job: Callable[..., Job]) -> Job:
    return run_job("uneven_data.py", len(RANKS), launcher=launched)


@pytest.mark.parametrize(
    "case",
    [
        "known",
        "unknown",
        "sparse",
        "half",
        "penalized",
        "not_finite_at_the_end",
        "even",
        "even_again",
        "fit",
    ],
)
def test_weights_are_those_of_one_process(trained: Job, case: str) -> None:
    tolerance = {"half": 2e-2, "penalized": 1e-9, "even": 0.0}.get(case, 2e-4)
    for rank in RANKS:
        trained.value(case, rank)
    arrays = [trained.arrays(case, rank) for rank in RANKS]
    alone = {name: value for found in arrays for name, value in found.items() if "alone" in name}
    for rank, found in zip(RANKS, arrays, strict=True):
        ours = [name for name in found if name.startswith("ours/")]
        assert len(ours) == sum(name.startswith(f"alone {rank}/") for name in alone) > 0
        for name in ours:
            wanted = alone[name.replace("ours", f"alone {rank}")]
            np.testing.assert_allclose(found[name], wanted, rtol=tolerance, atol=tolerance / 10)
            if name.startswith("ours/weight"):
                np.testing.assert_array_equal(found[name], arrays[0][name])


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", ["known", "unknown", "sparse", "half", "penalized"])
def test_rank_without_batches_repeats_its_last_one(trained: Job, case: str, rank: int) -> None:
    found = trained.value(case, rank)
    assert found["repeated"] == MISSING[rank]
    assert (found["phase"] == "run") == (case != "unknown")
    assert found["traces"] == 2  # of steps in which every rank has a batch, and of the others


@pytest.mark.parametrize("rank", RANKS)
def test_steps_in_which_every_rank_has_a_batch_have_the_trace_of_a_plain_loop(
    trained: Job, rank: int
) -> None:
    assert trained.value("even", rank)["traces"] == [1, 1]
    assert trained.value("even_again", rank)["traces"] == 2


@pytest.mark.parametrize("rank", RANKS)
def test_fit_joins_by_itself(trained: Job, rank: int) -> None:
    found = trained.value("fit", rank)
    assert found["phase"] == "run"
    assert found["history"] == trained.value("fit", 0)["history"]


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", REJECTED)
def test_join_is_rejected_on_all_ranks(trained: Job, case: str, rank: int) -> None:
    error = trained.error(case, rank)
    assert error.startswith("ValueError")
    assert REJECTED[case] in error


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_rank_that_is_lost_is_named_by_ranks_with_and_without_batches(
    how: str, nursery: Nursery, tmp_path: Path
) -> None:
    with running_workers(
        *("lost_with_uneven_data.py", len(RANKS), tmp_path, how), nursery=nursery, launcher=launched
    ) as workers:
        incident = tmp_path / f"incident.{LAST}.json"
        wait_until(incident.exists, DEADLINE_SECONDS)
        workers.wait(DEADLINE_SECONDS, tuple(RANKS[:LAST]))
        if how == "stopped":
            os.kill(json.loads(incident.read_text())["pid"], signal.SIGCONT)
        workers.wait(DEADLINE_SECONDS)
        for rank in RANKS[:LAST]:
            lost = json.loads((tmp_path / f"lost.{rank}.json").read_text())
            assert lost["batch"] == 4
            assert re.search(rf"rank(\(s\))? {LAST}\b", lost["error"])


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job of this process, whatever other tests have imported."""
    job = SimpleNamespace(rank_and_size=lambda: (0, 1))
    monkeypatch.setattr(current_job, "get_job", lambda: job)


@pytest.mark.usefixtures("one_process")
def test_one_process_gets_its_batches_as_they_are() -> None:
    joined = tf_libra.join(iter("abc"))
    assert [(batch, joined.is_repeating) for batch in joined] == [(each, False) for each in "abc"]
    assert not is_joined()
    assert list(tf_libra.join([])) == []


def test_timeout_is_checked() -> None:
    with pytest.raises(ValueError, match="timeout_seconds"):
        tf_libra.join([], timeout_seconds=-1.0)


def test_number_of_batches_is_known_or_not() -> None:
    dataset = tf.data.Dataset.range(5)
    assert _length(dataset) == len([*dataset]) == 5
    assert _length([1, 2]) == 2
    unknown = [iter("abc"), dataset.filter(lambda _: True), dataset.repeat()]
    assert {_length(batches) for batches in unknown} == {-1}
