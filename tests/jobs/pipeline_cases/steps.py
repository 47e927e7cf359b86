"""Results of pipelines, releases, short batches, and rejected steps."""

import contextlib

import harness
import numpy as np
import tensorflow as tf
from layer_stack import Stack, batch
from staged import refused

import tf_libra
import tf_libra.elastic
from pipeline_cases.common import MICROBATCHES, SAMPLES, SHORT, STEPS, cases, in_stages
from tests.model_parallel import models, plain_models
from tests.model_parallel.job import batches, build_model, make_plan, make_rank, run
from tf_libra.capture.variables import plain
from tf_libra.model_parallel.execution.transport import LanesTransport
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.strategies import DataParallel, GPipe, Spp


def train(make, strategy, **options):
    trained = build_model(make)
    step = tf_libra.optimize(strategy, **options)(tf.function(trained.step))
    returned = []
    for images, labels in batches(STEPS, SAMPLES):
        result = step(harness.own(images), harness.own(labels))
        returned.append({name: np.array(value).tolist() for name, value in result.items()})
    step.synchronize_variables()
    every = map(tf.convert_to_tensor, trained.every_variable)
    cases.save(**{str(i): variable.numpy() for i, variable in enumerate(every)})
    return {
        "returned": returned,
        "stages": [list(stage.devices) for stage in step.plan.stages],
        "layers": list(step.plan.layer_names),
        "explained": step.explain(),
        "settled": step.settled,
    }


def add(name, strategy, **options):
    cases.add(name, lambda: train(models.EVERY[name], strategy, **options))


# Models whose states or dtypes differ: threads of one process train every model with three stages.
if harness.SIZE == 2:
    for model in ("normalized", "dropping", "generating", "running_mean", "calling"):
        add(model, in_stages(2))
    cases.add("chosen", lambda: train(models.deep, Spp(num_microbatches=MICROBATCHES)))
    cases.add("gpipe", lambda: train(models.deep, GPipe(num_microbatches=MICROBATCHES)))
    by_data = DataParallel(num_microbatches=MICROBATCHES)
    cases.add("data_parallel", lambda: train(models.deep, by_data))
# No batch normalization: it depends on the examples that a replica computes at a time.
else:  # stages with replicas
    add("convolutional", in_stages(2))
if harness.SIZE != 3:
    add("deep", in_stages(harness.SIZE), logdir=harness.FOLDER / "logdir")


def released():
    """Releases variables of other stages between steps, and synchronizes them on request."""
    trained = build_model(models.deep)
    step = tf_libra.optimize(in_stages(2, release_variables=True))(tf.function(trained.flagged))
    handles = [variable.handle for variable in trained.variables]
    sizes = []

    def measure():
        """Appends the sizes of all values without a read of variables, which would fetch them."""
        values = [
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) for handle in handles
        ]
        sizes.append([int(tf.size(value)) for value in values])

    def run(images, labels, **flag):
        result = step(harness.own(images), harness.own(labels), **flag)
        measure()
        return float(result["loss"])

    first, second, third = batches(3, SAMPLES)
    run(*first)
    step.synchronize_variables()
    measure()
    run(*second)
    evaluated = run(*second, training=False)
    run(*(tensor[: SAMPLES // 2] for tensor in third))  # another trace
    run(*(tensor[SAMPLES // 2 :] for tensor in third))
    step.synchronize_variables()
    cases.save(**{str(i): variable.numpy() for i, variable in enumerate(trained.variables)})
    return {
        "sizes": sizes,
        "stages": [list(stage.devices) for stage in step.plan.stages],
        "evaluated": evaluated,
    }


if harness.SIZE == 4:
    cases.add("released", released)


def grouped():
    """Trains two stages with replicas that all-reduce three groups in their last backward."""
    tf_libra.collectives.connect()
    make, steps = models.convolutional, batches(2, SAMPLES)

    def layout(names):
        return Layout.from_pipeline_plan(make_plan(names, (0, 2), (2, 2), MICROBATCHES))

    lanes = LanesTransport(harness.RANK, "grouped", contextlib.nullcontext)
    rank = make_rank(make, lanes, layout, harness.SIZE, MICROBATCHES, steps, num_groups=3)
    run(rank, harness.RANK)
    alone = build_model(make)
    for step in steps:
        alone.accumulated(*step, MICROBATCHES)
    differences = []
    for own, wanted in zip(rank.trained.variables, alone.variables, strict=True):
        handle = rank.graph.placeholder_of(plain(own))
        if rank.partition.stage_of_variable(handle) in rank.executor.stages:
            difference = tf.abs(tf.convert_to_tensor(own) - tf.convert_to_tensor(wanted))
            differences.append(float(tf.reduce_max(difference)))
    return {"groups": [len(group) for group in rank.executor.layout.groups], "differ": differences}


if harness.SIZE == 4:
    cases.add("grouped", grouped)


class PythonLanes(LanesTransport):
    """Transport of ranks whose tasks Python calls one by one."""

    waits_in_functions = False


def compared_with_python():
    """Trains in one function per step, and with tasks that Python calls, and compares the bits."""
    tf_libra.collectives.connect()
    make, steps = models.convolutional, batches(2, SAMPLES)

    def layout(names):
        return Layout.from_pipeline_plan(make_plan(names, (0, 2), (1, 1), MICROBATCHES))

    ends = []
    for kind in (LanesTransport, PythonLanes):
        lanes = kind(harness.RANK, kind.__name__, contextlib.nullcontext)
        rank = make_rank(make, lanes, layout, harness.SIZE, MICROBATCHES, steps)
        run(rank, harness.RANK)
        values = [tf.convert_to_tensor(value).numpy() for value in rank.trained.variables]
        ends.append((rank, [result["loss"] for result in rank.results], values))
    (rank, losses, values), (other, other_losses, other_values) = ends
    return {
        "equal": list(map(np.array_equal, losses + values, other_losses + other_values)),
        "spans": [[span.kind, span.microbatch] for span in rank.executor.task_spans],
        "other_spans": [[span.kind, span.microbatch] for span in other.executor.task_spans],
        "seconds": [[span.start_seconds, span.stop_seconds] for span in rank.executor.task_spans],
    }


if harness.SIZE == 2:
    cases.add("compared_with_python", compared_with_python)


def short_batches(*, release=False):
    """Trains with last batches that microbatches, or replicas, do not divide.

    The step is a method, decorated in its class.
    """

    class Trainer:
        def __init__(self):
            self.trained = build_model(models.deep)

        @tf_libra.optimize(in_stages(2, release_variables=release))
        @tf.function
        def step(self, images, labels):
            return self.trained.step(images, labels)

    trainer = Trainer()
    trained, step = trainer.trained, trainer.step
    for size in SHORT:
        [(images, labels)] = batches(1, harness.SIZE * size)
        step(harness.own(images), harness.own(labels))
    step.synchronize_variables()
    cases.save(**{str(i): variable.numpy() for i, variable in enumerate(trained.variables)})


if harness.SIZE == 2:
    cases.add("short_batches", short_batches)
elif harness.SIZE == 3:  # two ranks of a stage do not divide all batches
    cases.add("short_batches", lambda: short_batches(release=True))


def in_other_stages(is_trained):
    """Runs layers in another order, with which a rank would compute with stale weights."""
    stack = Stack()

    def flagged(inputs, labels, training=True, turned=False):
        weights = stack.weights[::-1] if turned else stack.weights
        run = stack.step if training else stack.loss
        return run(inputs, labels, weights)

    step = tf_libra.optimize(in_stages(2))(tf.function(flagged))
    share = [harness.own(tensor) for tensor in batch(0)]
    step(*share)
    step(*share, training=is_trained, turned=True)


if harness.SIZE == 2:
    cases.add("a_batch_not_divided", lambda: refused(models.deep, Spp(num_microbatches=3)))
    cases.add(
        "more_stages_than_layers",
        lambda: refused(models.shallow, Spp(num_microbatches=2, num_stages=2)),
    )
    cases.add(
        "more_stages_than_workers",
        lambda: refused(models.deep, Spp(num_microbatches=2, num_stages=3)),
    )
    cases.add(
        "a_layer_too_large",
        lambda: refused(models.deep, Spp(num_microbatches=2, memory_bytes=64.0)),
    )
    cases.add(
        "a_model_without_layers", lambda: refused(plain_models.plain, Spp(num_microbatches=2))
    )
    cases.add("evaluated_in_other_stages", lambda: in_other_stages(is_trained=False))
    cases.add("trained_in_other_stages", lambda: in_other_stages(is_trained=True))
