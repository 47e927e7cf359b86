"""Steps of several strategies in one process, interleaved round by round.

All strategies train one model with one optimizer. So each finds weights and caches as the one
before left them, as in real training, and none is charged for the memory of the others. That
weights may differ between ranks after a step without communication does not change what a step
costs.

What a library does between steps goes on for all: Horovod's background thread, which every job
that `hvd.init()` starts has, wakes once per cycle during the steps of `none`, too.
"""

import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import tf_libra
from benchmarks.jobs.job import Job
from benchmarks.jobs.training import LEARNING_RATE, Exchange, Training, begin
from benchmarks.machine import congestion_control
from tf_libra import strategies
from tf_libra.planning.strategy import threads_at_once

# More than the steps that tf_libra traces under a new plan to check its prediction.
WARM_UP_ROUNDS = 10

# Of HOROVOD_*, what tells a worker its place in the job is no setting.
_PLACE = re.compile(r"HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|HOSTNAME|GLOO_RENDEZVOUS_.*)")

# Both ways that Horovod offers, of which the better counts.
_HOROVOD: dict[str, Exchange] = {
    "horovod:per_gradient": lambda gradients: [hvd.allreduce(one) for one in gradients],
    "horovod:grouped": hvd.grouped_allreduce,
}


def run(job: Job) -> None:
    """Measures all strategies of `job`; rank 0 writes the outcome to `job.output` as JSON.

    {"seconds": {name: seconds of each round}, "plans": {name: plan}, "tuning": {name: {"steps",
    "seconds"} until its plan was in force}, "settings": {...}}, where
    "horovod" appears in "seconds" as its two variants, "horovod:per_gradient" and
    "horovod:grouped".
    """
    training = begin(job)
    steps, tuning = _steps(job.strategies, training)
    seconds = _interleave(list(steps.values()), training.batch, job)
    if hvd.rank() != 0:
        return
    measured = {
        "seconds": {name: seconds[:, i].tolist() for i, name in enumerate(steps)},
        "plans": {
            name: json.loads(step.plan.to_json())
            for name, step in steps.items()
            if name in strategies.BY_NAME
        },
        "tuning": tuning,
        "settings": {
            "optimizer": f"SGD({LEARNING_RATE})",
            "parameters": training.num_parameters,
            "cores_per_worker": len(os.sched_getaffinity(0)),
            "congestion_control": congestion_control(),
            "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
            "warm_up_rounds": WARM_UP_ROUNDS,
            "horovod": _horovod_settings(),
        },
    }
    Path(job.output).write_text(json.dumps(measured))


def _steps(
    names: Sequence[str], training: Training
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """The step of every strategy, those of tf_libra with plans in force, and what that took."""
    steps, tuning = {}, {}
    # The first starts an engine with as many lanes as it may use, which the others share.
    ours = [name for name in names if name in strategies.BY_NAME]
    for name in sorted(
        ours, key=lambda one: threads_at_once(strategies.resolve(one)), reverse=True
    ):
        # Where ranks have different data, the strategy before has left them with different
        # moving averages.
        optimized = tf_libra.optimize(name, broadcast_variables=True)
        steps[name] = optimized(training.step(list))
        start, num_steps = time.perf_counter(), -1  # the last of them is under the plan
        while steps[name].plan is None:
            steps[name](*training.batch)
            num_steps += 1
        tuning[name] = {"steps": num_steps, "seconds": time.perf_counter() - start}
    if "none" in names:
        steps["none"] = training.step(list)
    if "horovod" in names:
        steps |= {name: training.step(exchange) for name, exchange in _HOROVOD.items()}
    return steps, tuning


def _interleave(steps: Sequence[Any], batch: tuple[Any, Any], job: Job) -> np.ndarray:
    """Returns the seconds of the slowest rank, of shape (job.rounds, steps)."""
    random = np.random.default_rng(job.seed)
    seconds = np.zeros((WARM_UP_ROUNDS + job.rounds, len(steps)))
    for of_round in seconds:
        for i in random.permutation(len(steps)):
            # Nobody is charged for the lag that the step before has left between the ranks.
            hvd.allreduce(tf.constant(0.0), name="barrier")
            start = time.perf_counter()
            steps[i](*batch).numpy()
            of_round[i] = time.perf_counter() - start
    everyone = hvd.allgather(tf.constant(seconds[None, WARM_UP_ROUNDS:]), name="seconds")
    return everyone.numpy().max(axis=0)


def _horovod_settings() -> dict[str, Any]:
    """What is in force: from the environment, else the defaults of this version."""
    defaults = strategies.HorovodFusion()
    environment = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("HOROVOD_") and not _PLACE.fullmatch(name)
    }
    cycle_ms = float(environment.get("HOROVOD_CYCLE_TIME", defaults.cycle_seconds * 1e3))
    threshold = int(environment.get("HOROVOD_FUSION_THRESHOLD", defaults.buffer_bytes))
    return {
        "cycle_seconds": cycle_ms / 1e3,
        "fusion_threshold_bytes": threshold,
        "environment": environment,
    }
