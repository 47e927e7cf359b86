"""Cases of steps on one rank: results, variables, reads on rank 0 alone, and other functions."""

from unittest import mock

import harness
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from staged import refused  # also lets modules of the tests be found

import tf_libra
from tests.model_parallel import models
from tests.model_parallel.job import batches, build_model
from tf_libra.runtime import family_step
from tf_libra.strategies import Auto, OneRank

hvd.init()
cases = harness.Cases()
SAMPLES, LAST = 24, harness.SIZE - 1
COMPARED_STEPS, FIRST = 90, "data parallelism"
MODELS = (models.mlp, models.convolutional, models.embedded, models.normalized)


def own(batch):
    return [harness.own(part) for part in batch]


def every_value(trained):
    every = map(tf.convert_to_tensor, trained.every_variable)
    return {str(i): value.numpy() for i, value in enumerate(every)}


def plain(result):
    return {name: np.array(value).tolist() for name, value in result.items()}


def measured():
    """Measures every rank for three steps, and trains two more."""
    trained = build_model(models.mlp)
    step = tf_libra.optimize("one-rank")(tf.function(trained.step))
    returned, phases, settled = [], [], []
    for batch in batches(3 * harness.SIZE + 2, SAMPLES):
        returned.append(plain(step(*own(batch))))
        phases.append(step.phase)
        settled.append(step.settled)
    plan = step.plan
    step.synchronize_variables()
    cases.save(**every_value(trained))
    return {
        "returned": returned,
        "phases": phases,
        "settled": settled,
        "plan": plan.to_document(),
        "explained": step.explain(),
    }


def given(make):
    """Reads and saves variables on rank 0 alone, without synchronization; then on all ranks."""
    trained = build_model(make)
    step = tf_libra.optimize(OneRank(rank=0))(tf.function(trained.step))
    returned = [plain(step(*own(batch))) for batch in batches(3, SAMPLES)]
    at_once = every_value(trained)
    if harness.RANK == 0:
        checkpoint = tf.train.Checkpoint(variables=trained.variables)
        path = checkpoint.write(str(harness.FOLDER / f"{make.__name__}.checkpoint"))
        for variable in trained.variables:
            variable.assign(tf.zeros_like(variable))
        checkpoint.read(path).assert_consumed()
        reread = every_value(trained)
        assert all(np.array_equal(reread[name], value) for name, value in at_once.items())
    step.synchronize_variables()
    values = every_value(trained)
    equal = all(np.array_equal(values[name], value) for name, value in at_once.items())
    cases.save(**values)
    return {"returned": returned, "was_current": equal}


def alternating():
    """Trains one model in turns by data parallelism, on the last rank, and on the first one."""
    trained = build_model(models.convolutional)
    steps = [
        tf_libra.optimize(strategy)(tf.function(trained.step))
        for strategy in ("wfbp", OneRank(rank=LAST), OneRank(rank=0))
    ]
    for number, batch in enumerate(batches(8, SAMPLES)):
        steps[number % 3 if number < 6 else number % 2](*own(batch))
    steps[1].synchronize_variables()
    steps[2].synchronize_variables()
    cases.save(**every_value(trained))


def compared(make, chosen="one-rank", **options):
    """Trains through trials of data parallelism and one rank; `chosen` wins.

    Which of the two is faster depends on the machine.
    """
    trained = build_model(make)
    strategy = Auto(families=("one-rank",), threads=(1,), streams=(1,))
    with mock.patch.object(
        family_step, "choose_fastest", lambda seconds: chosen if chosen in seconds else FIRST
    ):
        step = tf_libra.optimize(strategy, max_tuning_steps=20, **options)(
            tf.function(trained.step)
        )
        phases = []
        for batch in batches(COMPARED_STEPS, SAMPLES):
            result = step(*own(batch))
            phases.append(step.phase)
    at_once = every_value(trained)
    step.synchronize_variables()
    values = every_value(trained)
    cases.save(**values)
    return {
        "phases": phases,
        "settled": step.settled,
        "plan": type(step.plan).__name__,
        "explained": step.explain(),
        "loss": float(result["loss"]),
        "was_current": all(np.array_equal(values[name], at_once[name]) for name in values),
    }


def evaluated():
    """Evaluates and trains on batches of other sizes."""
    trained = build_model(models.counted)
    step = tf_libra.optimize(OneRank(rank=LAST))(tf.function(trained.flagged))
    first, second = batches(2, SAMPLES)
    half = [part[: SAMPLES // 2] for part in second]
    returned = [
        plain(step(*own(first))),
        plain(step(*own(second), training=False)),
        plain(step(*own(half))),
    ]
    step.synchronize_variables()
    cases.save(**every_value(trained))
    return {"returned": returned}


def nothing_returned():
    """Runs a step without results, whose ranks must not run ahead of each other."""
    weight = tf.Variable(1.0)

    @tf_libra.optimize(OneRank(rank=LAST))
    @tf.function
    def step(values):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * values)
        weight.assign_sub(tape.gradient(loss, weight))

    for _ in range(20):
        step(tf.fill([2], float(harness.RANK)))
    step.synchronize_variables()
    return float(weight)


def text_returned():
    """Returns what cannot be sent."""
    weight = tf.Variable(1.0)

    @tf_libra.optimize(OneRank(rank=0))
    @tf.function
    def step(values):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * values)
        weight.assign_sub(tape.gradient(loss, weight))
        return tf.as_string(loss)

    step(tf.ones([2]))


cases.add("measured", measured)
for make in MODELS:
    cases.add(f"given {make.__name__}", lambda make=make: given(make))
for case in (alternating, evaluated, nothing_returned, text_returned):
    cases(case)
cases.add("compared mlp", lambda: compared(models.mlp))
cases.add("compared embedded", lambda: compared(models.embedded, sparse_as_dense=True))
cases.add("compared sparse", lambda: compared(models.embedded))
cases.add("compared convolutional", lambda: compared(models.convolutional, FIRST))
cases.add("compared normalized", lambda: compared(models.normalized))
cases.add("no such rank", lambda: refused(models.mlp, OneRank(rank=harness.SIZE)))
cases.run()
