"""Data that end, checkpoints, and a job that begins again."""

import hashlib
from typing import Any

import horovod.tensorflow as hvd
import models
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, restart_engine, restart_horovod

import tf_libra
from script_cases.common import (
    DTYPE,
    LAST,
    PLAN_FILE,
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
)


def read(sizes: Any, epochs: int) -> Any:
    """A step that takes its batch from an iterator, in the graph, until there is none."""
    model = hand_written()

    def dataset() -> Any:
        numbers = tf.data.Dataset.range(sizes[RANK])
        return numbers.map(lambda n: tf.cast(tf.fill([4, models.FEATURES], n), DTYPE) / 7.0)

    def step(iterator: Any) -> Any:
        return model.step(next(iterator), tf.constant([0, 1, 2, 3]))

    stepping = optimized()(step)
    ends = []
    for _ in range(epochs):
        iterator, count = iter(dataset()), 0
        try:
            while True:
                stepping(iterator)
                count += 1
        except tf.errors.OutOfRangeError:
            ends.append(count)
    cases.save(**values(model.variables))
    return ends


@cases
def all_data_end_in_the_same_step() -> Any:
    return read([5] * SIZE, epochs=3)


@cases
def data_of_one_rank_end_early() -> Any:
    read([*[6] * LAST, 4], epochs=1)


@cases
def checkpoint_restored_on_one_rank() -> Any:
    model = hand_written()
    step = optimized()(model.step)
    step(*part(batch(0)))
    checkpoint = tf.train.Checkpoint(variables=model.variables)
    path = checkpoint.write(str(FOLDER / f"checkpoint.{RANK}"))
    for number in range(1, STEPS):
        step(*part(batch(number)))
    step.check_variables()
    if RANK == 0:
        checkpoint.read(path)
    step.check_variables()


@cases
def checkpoint_restored_on_one_rank_before_the_first_step() -> Any:
    model = hand_written()
    checkpoint = tf.train.Checkpoint(variables=model.variables)
    path = checkpoint.write(str(FOLDER / f"first.{RANK}"))
    model.variables[0].assign_add(tf.ones_like(model.variables[0]))
    if RANK == 0:
        checkpoint.read(path)
    optimized()(model.step)(*part(batch(0)))
    cases.save(**values(model.variables))


@cases
def same_plan_file() -> Any:
    """Three times from the start; the bits of all weights."""
    digests = []
    for _ in range(3):
        restart_engine()
        model = models.HandWritten("float32", "momentum")
        step = optimized(plan=PLAN_FILE)(model.step)
        for number in range(4 * STEPS):
            step(*models.part(models.batch(number, SIZE, "float32"), RANK, SIZE))
        bits = b"".join(v.numpy().tobytes() for v in model.variables)
        digests.append(hashlib.sha256(bits).hexdigest())
    return digests


@cases
def unequal_data_of_tapes_of_horovod() -> Any:
    """A tape of Horovod, which averages the weighted gradients, in a step of TF-Libra."""
    model, alone = hand_written(), hand_written()
    joint = [[models.part(batch(n), rank, SIZE) for n in range(2 + rank)] for rank in range(SIZE)]

    def step(inputs: Any, labels: Any) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = model.loss(inputs, labels)
        model.update(tape.gradient(loss, model.variables))

    stepping = optimized()(step)
    for inputs, labels in tf_libra.join(joint[RANK]):
        stepping(inputs, labels)
    train_unevenly(alone, joint)
    cases.save(
        **{f"alone/{k}": v for k, v in values(alone.variables).items()},
        **{f"ours/{k}": v for k, v in values(model.variables).items()},
    )


def train_unevenly(model: Any, joint: Any) -> None:
    """Trains in one process with the average of the batches there are."""
    for number in range(max(map(len, joint))):
        found = []
        for inputs, labels in [batches[number] for batches in joint if number < len(batches)]:
            with tf.GradientTape() as tape:
                loss = model.loss(inputs, labels)
            found.append(tape.gradient(loss, model.variables))
        model.update([tf.add_n(parts) / len(found) for parts in zip(*found, strict=True)])


@cases
def unequal_data_before_and_after_a_reset() -> Any:
    """One of the last cases: the step goes on in another job, as in elastic training."""
    model, alone = hand_written(), hand_written()
    stepping = optimized()(model.step)
    joint = [[models.part(batch(n), rank, SIZE) for n in range(2 + rank)] for rank in range(SIZE)]
    for reset in (False, True):
        if reset:
            restart_horovod()
        for inputs, labels in tf_libra.join(iter(joint[RANK])):
            stepping(inputs, labels)
        train_unevenly(alone, joint)
    cases.save(
        **{f"alone/{k}": v for k, v in values(alone.variables).items()},
        **{f"ours/{k}": v for k, v in values(model.variables).items()},
    )


@cases
def function_that_was_traced_before_a_reset() -> Any:
    """One of the last cases: the step goes on in another job, as in elastic training."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()

        @tf.function
        def gradients_of(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.loss(inputs, labels)
            return tape.gradient(loss, model.variables)

        def step(inputs: Any, labels: Any) -> None:
            model.update(gradients_of(inputs, labels))

        stepping = wrap(step)
        train_steps(stepping, share)
        if share is part:
            restart_horovod()
        train_steps(stepping, share)
        return model.variables, None

    return compared(train)
