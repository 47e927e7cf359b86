"""Steps of a MultiWorkerMirroredStrategy in one process, interleaved round by round.

As in `benchmarks.jobs.interleaved`, all strategies train one model with one optimizer; but there is
no Horovod, and every step is one that calls `strategy.run`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as tf_context

import tf_libra
from benchmarks import models
from benchmarks.jobs import rounds
from benchmarks.jobs.job import Job
from benchmarks.jobs.settings import LEARNING_RATES, make_optimizer, set_up
from benchmarks.variants import is_ours, options_of, strategy_of
from tf_libra.coordination import current_job

_BARRIER_MS = 600_000


def run(job: Job) -> None:
    """Measures all strategies of `job`; rank 0 writes the outcome to `job.output`.

    See `rounds.outcome`.
    """
    set_up(job)
    ring = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)
    tf.keras.utils.set_random_seed(job.seed)
    with strategy.scope():
        model, inputs, labels, loss = models.build(job.model)
        optimizer = make_optimizer(job)
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

    this = current_job.get_job()
    world = this.world(_BARRIER_MS / 1e3)
    steps, tuning = _steps(job.strategies, training_step, optimizer, batch)
    if "one-worker" in steps:
        alone = steps["one-worker"]
        steps["one-worker"] = rounds.on_joint_batch(alone, batch, world.rank, world.size)
    mine = rounds.seconds_in_turns(list(steps.values()), batch, job, _barrier)
    everyone = this.exchange_json({"seconds": mine.tolist()}, _BARRIER_MS / 1e3)
    if world.rank == 0:
        seconds = np.asarray([rank["seconds"] for rank in everyone]).max(axis=0)
        found = rounds.outcome(job, steps, seconds, tuning, model.count_params(), {})
        Path(job.output).write_text(found)


def _steps(
    names: Sequence[str], training_step: Any, optimizer: Any, batch: Any
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Returns the step of every strategy, tf_libra's with active plans, and what tuning took."""

    def reducing(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def alone(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        rate = LEARNING_RATES["sgd"]

        def update(strategy: Any, gradients: Sequence[Any]) -> None:
            for variable, gradient in zip(variables, gradients, strict=True):
                strategy.extended.update(
                    variable.value, lambda v, g: v.assign_sub(rate * g), (gradient,)
                )

        # An IndexedSlices would be another kind of update.
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        tf.distribute.get_replica_context().merge_call(update, args=(dense,))

    steps: dict[str, Any] = {}
    tuning: dict[str, dict[str, float]] = {}
    for name in names:
        if not is_ours(name):
            steps[name] = training_step(reducing if name == "mwms" else alone)
            continue
        options: dict[str, Any] = {"broadcast_variables": "always", "shard_updates": False}
        options |= options_of(name)
        optimized = tf_libra.optimize(strategy_of(name), **options)
        steps[name] = optimized(training_step(reducing))
        tuning[name] = rounds.until_planned(steps[name], batch)
    return steps, tuning


def _barrier(name: str) -> None:
    tf_context.context().wait_at_barrier(name, _BARRIER_MS)
