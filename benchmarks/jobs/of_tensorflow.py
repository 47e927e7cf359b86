"""Steps of a MultiWorkerMirroredStrategy in one process, interleaved round by round.

As in `benchmarks.jobs.interleaved`, all strategies train one model with one optimizer; but there is
no Horovod, and every step is one that calls `strategy.run`.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as tf_context

import tf_libra
from benchmarks import models
from benchmarks.jobs.job import Job
from benchmarks.machine import congestion_control
from tf_libra import strategies
from tf_libra.backends import jobs

LEARNING_RATE = 0.01
INTRA_OP_THREADS = 1
WARM_UP_ROUNDS = 10
_BARRIER_MS = 600_000


def run(job: Job) -> None:
    """Measures all strategies of `job`; rank 0 writes the outcome to `job.output` as JSON.

    The document is that of `benchmarks.jobs.interleaved`.
    """
    tf.config.set_visible_devices([], "GPU")
    if job.pinned:
        tf.config.threading.set_intra_op_parallelism_threads(INTRA_OP_THREADS)
        tf.config.threading.set_inter_op_parallelism_threads(job.inter_op_threads)
    ring = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)
    tf.keras.utils.set_random_seed(job.seed)
    with strategy.scope():
        model, inputs, labels, loss = models.build(job.model)
        optimizer = tf.keras.optimizers.SGD(LEARNING_RATE)
        optimizer.build(model.trainable_variables)
    batch = tf.nest.map_structure(tf.convert_to_tensor, (inputs, labels))

    def training_step(apply: Callable[[Sequence[Any], Sequence[Any]], Any]) -> Any:
        def replica(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(loss(labels, model(inputs, training=True)))
                share = value / strategy.num_replicas_in_sync
            apply(tape.gradient(share, model.trainable_variables), model.trainable_variables)
            return value

        @tf.function
        def step(*batch: Any) -> Any:
            return strategy.run(replica, args=batch)

        return step

    steps, tuning = _steps(job.strategies, training_step, optimizer, batch)
    seconds = _interleave(list(steps.values()), batch, job)
    if jobs.of_this_process().world(_BARRIER_MS / 1e3).rank != 0:
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
            "parameters": model.count_params(),
            "cores_per_worker": len(os.sched_getaffinity(0)),
            "congestion_control": congestion_control(),
            "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
            "warm_up_rounds": WARM_UP_ROUNDS,
            "horovod": {},
        },
    }
    Path(job.output).write_text(json.dumps(measured))


def _steps(
    names: Sequence[str], training_step: Any, optimizer: Any, batch: Any
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """The step of every strategy, those of tf_libra with plans in force, and what that took."""

    def reducing(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def alone(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        def update(strategy: Any, gradients: Sequence[Any]) -> None:
            for variable, gradient in zip(variables, gradients, strict=True):
                strategy.extended.update(
                    variable.value, lambda v, g: v.assign_sub(LEARNING_RATE * g), (gradient,)
                )

        # An IndexedSlices would be another kind of update.
        dense = [tf.convert_to_tensor(one) for one in gradients]
        tf.distribute.get_replica_context().merge_call(update, args=(dense,))

    steps, tuning = {}, {}
    for name in names:
        if name not in strategies.BY_NAME:
            steps[name] = training_step(reducing if name == "mwms" else alone)
            continue
        steps[name] = tf_libra.optimize(name, broadcast_variables=True)(training_step(reducing))
        start, num_steps = time.perf_counter(), -1  # the last of them is under the plan
        while steps[name].plan is None:
            steps[name](*batch)
            num_steps += 1
        tuning[name] = {"steps": num_steps, "seconds": time.perf_counter() - start}
    return steps, tuning


def _interleave(steps: Sequence[Any], batch: tuple[Any, Any], job: Job) -> np.ndarray:
    """Returns the seconds of the slowest rank, of shape (job.rounds, steps)."""
    random = np.random.default_rng(job.seed)
    seconds = np.zeros((WARM_UP_ROUNDS + job.rounds, len(steps)))
    for number, of_round in enumerate(seconds):
        for i in random.permutation(len(steps)):
            # Nobody is charged for the lag that the step before has left between the ranks.
            tf_context.context().wait_at_barrier(f"round {number} step {i}", _BARRIER_MS)
            start = time.perf_counter()
            steps[i](*batch).numpy()
            of_round[i] = time.perf_counter() - start
    mine = {"seconds": seconds[WARM_UP_ROUNDS:].tolist()}
    everyone = jobs.of_this_process().exchange_json(mine, _BARRIER_MS / 1e3)
    return np.asarray([one["seconds"] for one in everyone]).max(axis=0)
