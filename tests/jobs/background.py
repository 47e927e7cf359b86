"""Training on two workers with concurrent background jobs."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import models
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, Cases

import tf_libra
from tf_libra.background_jobs.manager import Background, current_manager

cases = Cases()
hvd.init()
MODULE = f"counting{RANK}"
REPORT = FOLDER / f"report.{RANK}.json"
# Counts as long as it is let; from a file of its own, as a command and as a function.
COUNTING = f"""
import json, os
from pathlib import Path

count = 0
report = Path({str(REPORT)!r})

def once():
    global count
    count += 1
    new = report.with_suffix(".new")
    new.write_text(json.dumps({{
        "count": count,
        "rank": os.environ.get("TF_LIBRA_BACKGROUND_RANK"),
        "horovod": os.environ.get("HOROVOD_RANK"),
    }}))
    new.replace(report)

if __name__ == "__main__":
    while True:
        once()
"""
(FOLDER / f"{MODULE}.py").write_text(COUNTING)
sys.path.insert(0, str(FOLDER))


def everywhere(here: bool) -> bool:
    """Returns whether the condition holds on every rank."""
    return float(hvd.allreduce(tf.constant(float(here)), name="everywhere", op=hvd.Sum)) == SIZE


def train(job: Background, until: Callable[[], bool], **options: Any) -> dict[str, Any]:
    """Trains until the condition holds on every rank; saves weights of this and of one process.

    A job that runs on idle time only may get none during steps: the loop waits for it if it can.
    """
    model = models.HandWritten("float64", "sgd")
    step = tf_libra.optimize("wfbp", max_tuning_steps=1, **options)(tf.function(model.step))
    number = 0
    while number < 100 or (number < 1000 and not everywhere(until())):
        for _ in range(20):
            step(*models.part(models.batch(number % 50, SIZE, "float64"), RANK, SIZE))
            number += 1
            wait_until(lambda: until() or not job.runs)
    baseline = models.HandWritten("float64", "sgd")
    alone_step = tf.function(baseline.step)
    for other in range(number):
        alone_step(*models.batch(other % 50, SIZE, "float64"))
    cases.save(
        **{f"ours/{name}": value for name, value in model.weights().items()},
        **{f"alone/{name}": value for name, value in baseline.weights().items()},
    )
    return {"steps": number, "explained": step.explain()}


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not true():
        assert time.monotonic() < deadline, "the background has not had any time"
        time.sleep(0.01)


def counted(given: Any, **options: Any) -> Any:
    REPORT.unlink(missing_ok=True)
    job = tf_libra.background(given, max_slowdown=0.5)
    try:
        trained = train(job, REPORT.exists, **options)
    finally:
        job.end()
    return trained | json.loads(REPORT.read_text()) | {"described": job.describe()}


@cases
def command() -> Any:
    return counted([sys.executable, str(FOLDER / f"{MODULE}.py")])


@cases
def function_of_a_module() -> Any:
    return counted(__import__(MODULE).once, logdir=FOLDER / "logdir")


@cases
def not_while_tuning() -> Any:
    """As long as a step tries plans out, not even its process is started."""
    here = FOLDER / f"started.{RANK}"
    job = tf_libra.background(["touch", str(here)])
    model = models.HandWritten("float32", "sgd")
    strategy = tf_libra.strategies.Libra(threads=(1, 2), race=False)
    unlimited = tf_libra.Tuning(max_seconds=1e6)
    step = tf_libra.optimize(strategy, max_tuning_steps=100, tuning=unlimited)(
        tf.function(model.step)
    )
    number = 0
    while str(step.phase) != "run":
        step(*models.part(models.batch(number, SIZE, "float32"), RANK, SIZE))
        number += 1
    started = here.exists() or job._process is not None
    job.end()
    return {"tuned": number > 10, "started": started}


@cases
def one_that_fails() -> Any:
    job = tf_libra.background([sys.executable, "-c", "import sys; sys.exit(3)"])
    train(job, lambda: job.is_over)
    return {"over": job.is_over}


@cases
def two_jobs() -> Any:
    job = tf_libra.background(["sleep", "600"])
    try:
        tf_libra.background(["sleep", "600"])
    finally:
        job.end()


if __name__ == "__main__":
    assert current_manager().background is None
    assert Path(sys.argv[0]).name == "background.py"
    cases.run()
