"""Training and a background job on the same cores, in several ways, in blocks that take turns.

In every way each training step works on the batches of all ranks together.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import tf_libra
from benchmarks.jobs import counting
from benchmarks.jobs.job import BurstsJob as Job
from benchmarks.jobs.training import begin
from tf_libra import strategies

# Before what counts, for caches, and for a background job to have begun.
WARM_UP_STEPS = 16
_BEGIN_SECONDS = 600.0
_STATIC_SHARE = 1  # ranks that train in a static partition; the others have the background


def run(job: Job) -> None:
    """Measures; rank 0 writes {"rounds": [{way: {...}}], "plan", "settings"} to `job.output`."""
    trained = begin(job)
    file = Path(f"{job.output}.count.{hvd.rank()}")
    together = tf_libra.optimize("libra")(trained.step(list))
    bursts = tf_libra.optimize(strategies.DeepPool(max_amplification=job.max_amplification))(
        trained.step(list)
    )
    for step in (together, bursts):
        while not step.settled:
            step(*trained.batch)
    alone = trained.step(list)
    whole = tf.nest.map_structure(
        lambda tensor: tf.concat([tensor] * hvd.size(), axis=0), trained.batch
    )  # all ranks have the same samples
    ways: dict[str, Callable[[], dict[str, float]]] = {
        "data parallel": lambda: _trained(together, trained.batch, job),
        "data parallel, background": lambda: _with_background(together, trained.batch, job, file),
        "static partition": lambda: _partition(alone, whole, job, file),
        "bursts": lambda: _trained(bursts, trained.batch, job),
        "bursts, background": lambda: _with_background(bursts, trained.batch, job, file),
        "background": lambda: _background(job, file),
    }
    random = np.random.default_rng(job.seed)
    rounds = []
    for _ in range(job.rounds):
        order = random.permutation(list(ways)).tolist()
        rounds.append({name: ways[name]() for name in order})
    if hvd.rank() != 0:
        return
    assert bursts.plan is not None
    settings = {
        "parameters": trained.num_parameters,
        "intra_op_threads": job.cores,
        "batch_per_rank": int(tf.nest.flatten(trained.batch)[0].shape[0]),
    }
    document = {
        "rounds": rounds,
        "plan": json.loads(bursts.plan.to_json()),
        "explained": bursts.explain(),
        "settings": settings,
    }
    Path(job.output).write_text(json.dumps(document))


def _trained(step: Any, batch: Any, job: Job) -> dict[str, float]:
    """Seconds of a step, in the mean over a block."""
    for _ in range(WARM_UP_STEPS):
        step(*batch)
    start = time.perf_counter()
    for _ in range(job.steps):
        step(*batch).numpy()
    return {"step_seconds": (time.perf_counter() - start) / job.steps, "background_per_second": 0.0}


def _with_background(step: Any, batch: Any, job: Job, file: Path) -> dict[str, float]:
    """Measures a block of steps, as `_trained` does, with the background paced concurrently."""
    file.unlink(missing_ok=True)
    background = tf_libra.background(_command(file), max_slowdown=job.max_slowdown)
    try:
        deadline = time.monotonic() + _BEGIN_SECONDS
        while not _everywhere(counting.read(file) > 0):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the background has not begun within {_BEGIN_SECONDS:g} s")
            step(*batch)
            # The background may run during single steps, which may leave it no time to begin.
            while background.runs and counting.read(file) == 0 and time.monotonic() < deadline:
                time.sleep(0.01)
        before, start = counting.read(file), time.perf_counter()
        found = _trained(step, batch, job)
        rate = (counting.read(file) - before) / (time.perf_counter() - start)
    finally:
        background.end()
    return found | {"background_per_second": _sum(rate)}


def _partition(step: Any, batch: Any, job: Job, file: Path) -> dict[str, float]:
    """Some ranks train on the whole batch by themselves, the others have the background."""
    trains = hvd.rank() < _STATIC_SHARE
    found, rate = {"step_seconds": 0.0}, 0.0
    with contextlib.nullcontext() if trains else _counting(file):
        _barrier()
        before, start = counting.read(file), time.perf_counter()
        if trains:
            found = _trained(step, batch, job)
        _barrier()
        if not trains:
            rate = (counting.read(file) - before) / (time.perf_counter() - start)
    found = hvd.broadcast_object(found, root_rank=0, name="partition")
    return found | {"background_per_second": _sum(rate)}


def _background(job: Job, file: Path) -> dict[str, float]:
    """The background alone, on all ranks' cores."""
    with _counting(file):
        _barrier()
        before, start = counting.read(file), time.perf_counter()
        time.sleep(job.background_seconds)
        rate = (counting.read(file) - before) / (time.perf_counter() - start)
    return {"step_seconds": 0.0, "background_per_second": _sum(rate)}


@contextlib.contextmanager
def _counting(file: Path) -> Iterator[None]:
    """The background of this rank, with nothing to pace it; yields once it counts."""
    file.unlink(missing_ok=True)
    process = subprocess.Popen(_command(file), env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        deadline = time.monotonic() + _BEGIN_SECONDS
        while counting.read(file) == 0:
            if time.monotonic() > deadline or process.poll() is not None:
                raise TimeoutError(f"the background has not begun within {_BEGIN_SECONDS:g} s")
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()


def _command(file: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.jobs.counting", str(file)]


def _barrier() -> None:
    hvd.allreduce(tf.constant(0.0), name="barrier")


def _sum(value: float) -> float:
    return float(hvd.allreduce(tf.constant(value, tf.float64), op=hvd.Sum, name="sum"))


def _everywhere(here: bool) -> bool:
    return _sum(float(here)) == hvd.size()
