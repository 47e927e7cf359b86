"""Checkpoints, rejected uses, overflow, and gradients that are not finite."""

from typing import Any

import models
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, barrier

import tf_libra
import tf_libra.keras
from multi_worker_cases.common import (
    STEPS,
    STRATEGY,
    TUNING,
    Dense,
    cases,
    data,
    describe,
    save_both,
    scale_of,
    scaling,
    whole_step,
)


@cases
def checkpoint() -> Any:
    """Saves between two steps, trains on, restores, and repeats the second step."""
    tf.keras.utils.set_random_seed(3)
    with STRATEGY.scope():
        model = Dense(tf.keras.optimizers.SGD(0.1))
    step = tf_libra.optimize("wfbp", **TUNING)(tf.function(whole_step(model.step)))
    for number in range(4):
        step(*data(number))
    saved = tf.train.Checkpoint(variables=model.variables, optimizer=model.optimizer)
    path = saved.write(str(FOLDER / f"checkpoint.{RANK}"))
    step(*data(4))
    first = [v.numpy() for v in model.variables]
    saved.restore(path)
    step(*data(4))
    return [bool((v.numpy() == w).all()) for v, w in zip(model.variables, first, strict=True)]


@cases
def reduces_nothing() -> Any:
    with STRATEGY.scope():
        model = Dense(None)

    def step(inputs: Any, labels: Any) -> Any:
        return model.gradients(inputs, labels)[0]

    tf_libra.optimize("wfbp", progress=False)(tf.function(whole_step(step)))(*data(0))


@cases
def decorated_in_the_replica() -> Any:
    with STRATEGY.scope():
        model = Dense(tf.keras.optimizers.SGD(0.1))
    step = tf_libra.optimize("wfbp", progress=False)(tf.function(model.step))
    STRATEGY.run(step, args=data(0))


@cases
def engine_of_horovod() -> Any:
    with STRATEGY.scope():
        model = Dense(tf.keras.optimizers.SGD(0.1))
    tf_libra.optimize("wfbp", engine="horovod")(tf.function(whole_step(model.step)))(*data(0))


@cases
def pipeline() -> Any:
    with STRATEGY.scope():
        model = Dense(tf.keras.optimizers.SGD(0.1))
    planner = tf_libra.strategies.Spp(num_microbatches=2)
    tf_libra.optimize(planner)(tf.function(whole_step(model.step)))(*data(0))


@cases
def joined() -> Any:
    for _ in tf_libra.join([data(0)]):
        pass


@cases
def overflow_of_one_worker() -> Any:
    """While plans are tried, and under a plan: all workers skip the step."""
    overflows = (1, 7)
    alone = models.HandWritten("float32", "sgd")
    for number in range(STEPS):
        if number not in overflows:
            alone.step(*models.batch(number, SIZE, "float32"))
    with STRATEGY.scope():
        inner = tf.keras.optimizers.SGD(0.1)
        model = Dense(tf.keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0))
        replica, variables = scaling(model)
    step = tf_libra.optimize("wfbp", **TUNING)(tf.function(whole_step(replica)))
    for number in range(STEPS):
        inputs, labels = data(number)
        step(inputs * (np.inf if RANK == 1 and number in overflows else 1.0), labels)
    plain = {f"{i}": v.numpy() for i, v in enumerate(alone.variables)}
    save_both(plain, {f"{i}": v.numpy() for i, v in enumerate(variables)})
    return describe(step) | scale_of(model.optimizer)


@cases
def gradient_that_is_no_number() -> Any:
    """The step is undone on every rank."""
    with STRATEGY.scope():
        model = Dense(tf.keras.optimizers.SGD(0.1))
    step = tf_libra.optimize("wfbp", check_numerics="raise", **TUNING)(
        tf.function(whole_step(model.step))
    )
    step(*data(0))
    before = [v.numpy() for v in model.variables]
    inputs, labels = data(1)
    message = ""
    try:
        step(inputs * (np.nan if RANK == 1 else 1.0), labels)
    except FloatingPointError as error:
        message = str(error)
    same = all((v.numpy() == w).all() for v, w in zip(model.variables, before, strict=True))
    step(*data(2))
    return {"message": message, "same": bool(same)}


@cases
def one_worker_gives_up() -> Any:
    """Its error is the others', of the kind that the strategy's own collectives raise."""
    with STRATEGY.scope():
        model = Dense(tf.keras.optimizers.SGD(0.1))
    step = tf_libra.optimize("wfbp", **TUNING)(tf.function(whole_step(model.step)))
    step(*data(0))
    try:
        if RANK == 1:
            step("no", "data")
        step(*data(1))
    except Exception as error:
        barrier()
        return f"{type(error).__name__}: {error}"
