"""Workers that a launcher starts again after one was killed: checkpoint, and cached plan."""

import contextlib
import re
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.worker_processes import Job, launched

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "restartable_digits.py"
STEPS, KILLED, SAVED = 130, 110, 100


@pytest.fixture(scope="module")
def starts(run_job: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> list[Job]:
    """Jobs of one launcher, which starts the workers again at the same address until they end."""
    arguments = (f"--steps={STEPS}", f"--kill_at_step={KILLED}")
    folder = f"--folder={tmp_path_factory.mktemp('restartable')}"
    jobs: list[Job] = []
    with launched(2) as variables:
        while not jobs or (any(jobs[-1].returncodes) and len(jobs) < 3):
            jobs.append(
                run_job(
                    str(EXAMPLE),
                    2,
                    *arguments,
                    folder,
                    check=False,
                    launcher=lambda world_size: contextlib.nullcontext(variables),
                )
            )
    return jobs


def checkpoint(job: Job) -> dict[str, np.ndarray]:
    """Returns the weights and momenta of the last checkpoint that a job has named."""
    [path] = re.findall(r"^checkpoint: (.+)$", job.output(0), re.MULTILINE)[-1:]
    reader = tf.train.load_checkpoint(path)
    names = [name for name in reader.get_variable_to_shape_map() if "OBJECT_GRAPH" not in name]
    return {name: reader.get_tensor(name) for name in names if name != "save_counter"}


def test_killed_worker_ends_the_first_start(starts: list[Job]) -> None:
    killed, second = starts
    assert killed.returncodes[1] == -signal.SIGKILL
    assert killed.returncodes[0] == 1
    assert "UnavailableError" in killed.output(0) and "rank 1 is gone" in killed.output(0)
    assert second.returncodes == (0, 0)


def test_second_start_continues_from_the_checkpoint_under_the_cached_plan(
    starts: list[Job],
) -> None:
    first, second = (job.output(0) for job in starts)
    assert f"start at step 0 of {STEPS}" in first and "measure: from step 1" in first
    assert f"start at step {SAVED} of {STEPS}" in second
    plans = [re.findall(r"run: plan (\w+) \((\w+)\) is active from step (\d+)", text) for text in
             (first, second)]  # fmt: skip
    [(plan, source, _)] = plans[0]
    assert source == "tuned"
    assert plans[1] == [(plan, "cached", "1")]


def test_weights_are_those_of_training_without_a_break(
    starts: list[Job], run_job: Callable[..., Job], tmp_path: Path
) -> None:
    whole = run_job(str(EXAMPLE), 1, f"--steps={STEPS}", f"--folder={tmp_path}", launcher=launched)
    wanted, found = checkpoint(whole), checkpoint(starts[-1])
    assert wanted.keys() == found.keys() and len(wanted) > 12
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4)
