"""Steps of several strategies in turns, however the workers meet."""

import functools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.jobs.job import Job
from benchmarks.jobs.settings import describe_optimizer
from benchmarks.machine import congestion_control
from benchmarks.variants import is_ours
from tf_libra.step_comparison import time_in_turns
from tf_libra.variable_sync.pending_gathers import pending_gathers

# More than the steps that tf_libra traces under a new plan to check its prediction.
WARM_UP_ROUNDS = 10


def until_planned(
    step: Any, batch: tuple[Any, Any], has_families: bool = False
) -> dict[str, float]:
    """Trains until a plan is active; returns {"steps", "seconds"} that this took.

    A step that may compare families of strategies has plans before these trials end.
    """
    start, num_steps = time.perf_counter(), -1  # the last of them is under the plan
    while step.plan is None or (has_families and not step.settled):
        step(*batch)
        num_steps += 1
    return {"steps": num_steps, "seconds": time.perf_counter() - start}


def on_joint_batch(step: Any, batch: tuple[Any, Any], rank: int, num_ranks: int) -> Any:
    """A step of rank 0 alone on the joint batch of all ranks; the other ranks return immediately.

    They wait in the next barrier, on cores of their own.

    Args:
        step: without all-reduces.
        batch: inputs and labels of one rank; the joint batch repeats them.
        rank: of this process.
        num_ranks: of the job.
    """
    if rank > 0:
        return lambda *_: tf.constant(0.0)
    joint = tf.nest.map_structure(lambda part: tf.concat([part] * num_ranks, axis=0), batch)
    return lambda *_: step(*joint)


def seconds_in_turns(
    steps: Sequence[Any], batch: tuple[Any, Any], job: Job, barrier: Callable[[str], None]
) -> np.ndarray:
    """Seconds of this rank's steps, shape (job.rounds, steps): means of each turn.

    A turn ends when all weights are whole, so that no step overlaps with the gathers of another.

    Args:
        steps: what takes turns.
        batch: their arguments.
        job: says how many rounds, and draws their order.
        barrier: waits for all ranks, by a name that is used once.
    """

    def turn(step: Any) -> Any:
        for _ in range(job.turn_steps):
            result = step(*batch)
        pending_gathers().finish()
        return result

    calls = [functools.partial(turn, step) for step in steps]
    seconds = time_in_turns(calls, job.rounds, WARM_UP_ROUNDS, barrier, job.seed)
    return seconds / job.turn_steps


def outcome(
    job: Job,
    steps: Mapping[str, Any],
    seconds: np.ndarray,
    tuning: Mapping[str, Mapping[str, float]],
    num_parameters: int,
    horovod: Mapping[str, Any],
) -> str:
    """Returns the JSON that rank 0 writes.

    {"seconds": {name: seconds of each round}, "plans": {name: plan}, "tuning": {name: {"steps",
    "seconds"} until its plan was active, with the "optimizer_bytes" that rank 0 held then},
    "settings": {...}}.

    Args:
        job: that was measured.
        steps: by name.
        seconds: of the slowest rank, shape (rounds, steps).
        tuning: of tf_libra's strategies, by name.
        num_parameters: of the model.
        horovod: its settings; empty where there is none.
    """
    return json.dumps(
        {
            "seconds": {name: seconds[:, i].tolist() for i, name in enumerate(steps)},
            "plans": {
                name: json.loads(step.plan.to_json())
                for name, step in steps.items()
                if is_ours(name)
            },
            "tuning": tuning,
            "settings": {
                "optimizer": describe_optimizer(job),
                "parameters": num_parameters,
                "cores_per_worker": len(os.sched_getaffinity(0)),
                "congestion_control": congestion_control(),
                "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
                "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
                "warm_up_rounds": WARM_UP_ROUNDS,
                "turn_steps": job.turn_steps,
                "horovod": horovod,
            },
        }
    )
