"""Ways to call a step: over datasets, as an object, by threads, for evaluation."""

import concurrent.futures
import functools
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from harness import RANK

import tf_libra
from script_cases.common import (
    BRIEFLY,
    DTYPE,
    LAST,
    STEPS,
    Share,
    Wrap,
    batch,
    cases,
    compared,
    hand_written,
    optimized,
    part,
    train_steps,
    values,
    whole,
)


def looping_over_a_dataset(loop: Callable[[Any, Any], Any]) -> Any:
    """Three batches in each call, from a dataset that the step is given."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()

        def train_on(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.loss(inputs, labels)
            model.update(tape.gradient(loss, model.variables))
            return loss

        stepping = wrap(lambda dataset: loop(dataset, train_on))
        for number in range(STEPS):
            shares = [share(batch(3 * number + index)) for index in range(3)]
            stacked = tf.nest.map_structure(lambda *parts: tf.stack(parts), *shares)
            stepping(tf.data.Dataset.from_tensor_slices(stacked))
        return model.variables, None

    return compared(train)


@cases
def loop_over_a_dataset() -> Any:
    def steps(dataset: Any, train_on: Any) -> Any:
        total = tf.constant(0.0, DTYPE)
        for inputs, labels in dataset:
            total += train_on(inputs, labels)
        return total

    return looping_over_a_dataset(steps)


@cases
def loop_over_a_dataset_that_is_left_early() -> Any:
    def steps(dataset: Any, train_on: Any) -> Any:
        for number, (inputs, labels) in enumerate(dataset):
            if number > 1:
                break
            train_on(inputs, labels)

    return looping_over_a_dataset(steps)


@cases
def loop_over_a_dataset_that_only_tf_data_can_run() -> Any:
    """A loop variable changes its shape from batch to batch."""

    def steps(dataset: Any, train_on: Any) -> Any:
        losses = tf.zeros([0], DTYPE)
        for inputs, labels in dataset:
            losses = tf.concat([losses, [train_on(inputs, labels)]], 0)
        return losses

    return looping_over_a_dataset(steps)


class Trainer:
    """A step that is an object."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, inputs: Any, labels: Any, scale: float = 1.0) -> Any:
        with tf.GradientTape() as tape:
            loss = scale * self.model.loss(inputs, labels)
        self.model.update(tape.gradient(loss, self.model.variables))


@cases
def steps_that_are_objects() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()
        step = Trainer(model)
        alone = share is whole
        for function in (
            step,
            functools.partial(step, scale=0.5),
            tf.function(step) if alone else tf_libra.optimize(**BRIEFLY)(step),
        ):
            stepping = function if hasattr(function, "several") else wrap(function)
            train_steps(stepping, share)
        return model.variables, None

    return compared(train)


@cases
def evaluated_by_the_same_function() -> Any:
    """A flag says whether to train. Evaluations are no steps: rank 0 evaluates more often."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()

        def step(inputs: Any, labels: Any, training: bool = True) -> Any:
            return model.step(inputs, labels) if training else model.loss(inputs, labels)

        stepping = wrap(step)
        for number in range(2 * STEPS):
            stepping(*share(batch(number)))
            before = values(model.variables)
            for _ in range(1 if RANK else 2):
                loss = stepping(*share(batch(number)), training=False)
                np.testing.assert_allclose(loss, model.loss(*share(batch(number))))
            assert all((before[k] == v).all() for k, v in values(model.variables).items())
        return model.variables, None

    return compared(train)


@cases
def two_threads_that_step_concurrently() -> Any:
    """All on one batch, so that it does not matter whose turn it is."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()
        step = wrap(model.step)

        def steps() -> None:
            for _ in range(STEPS):
                step(*share(batch(0)))

        with concurrent.futures.ThreadPoolExecutor(1 if share is whole else 2) as pool:
            for future in [pool.submit(steps) for _ in range(2)]:
                future.result()
        return model.variables, None

    return compared(train)


@cases
def clustered_by_xla() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()
        train_steps(wrap(model.step), share)
        return model.variables, None

    tf.config.optimizer.set_jit(True)
    try:
        return compared(train)
    finally:
        tf.config.optimizer.set_jit(False)


@cases
def joined_by_all_ranks() -> Any:
    model = hand_written("sgd")
    step = optimized()(model.step)
    lasts = []
    for _ in range(2):
        train_steps(step, part)
        lasts.append(int(hvd.join()))
    cases.save(**values(model.variables))
    return lasts


@cases
def joined_by_one_rank() -> Any:
    model = hand_written("sgd")
    step = optimized()(model.step)
    train_steps(step, part)
    if RANK == LAST:
        hvd.join()
    else:
        step(*part(batch(STEPS)))


@cases
def functions_run_eagerly() -> Any:
    model = hand_written("sgd")
    step = optimized()(model.step)
    step(*part(batch(0)))
    tf.config.run_functions_eagerly(True)
    try:
        step(*part(batch(1)))
    finally:
        tf.config.run_functions_eagerly(False)
