"""Pipelines of processes that start another job, with other ranks."""

import contextlib
import os
from unittest import mock

import harness
import horovod.tensorflow as hvd
import tensorflow as tf
from layer_stack import Stack, batch

import tf_libra
import tf_libra.elastic
from benchmarks.rendezvous_env import meeting
from pipeline_cases.common import SAMPLES, cases, in_stages
from tests.model_parallel import models
from tests.model_parallel.job import batches, build_model
from tf_libra.variable_sync.read_service import read_service


def another_job():
    """Starts another job of the same processes with exchanged ranks."""
    trained = build_model(models.deep)
    first, second = (tf.function(trained.step) for _ in range(2))
    staged = tf_libra.optimize(in_stages(2))(first)
    shares = [(harness.own(images), harness.own(labels)) for images, labels in batches(4, SAMPLES)]
    staged(*shares[0])
    change_places()
    every = [*trained.variables, *trained.state, *trained.optimizer.variables]
    start = [tf.convert_to_tensor(variable).numpy() for variable in every]
    parallel = tf_libra.optimize("syneasgd", max_tuning_steps=2)(second)
    for step, share in zip((parallel, staged, parallel), shares[1:], strict=True):
        step(*share)
    expected = build_model(models.deep)
    copies = [*expected.variables, *expected.state, *expected.optimizer.variables]
    for copy, value in zip(copies, start, strict=True):
        copy.assign(value)
    for images, labels in batches(4, SAMPLES)[1:]:
        expected.step(images, labels)
    cases.save(
        **{f"ours/{i}": tf.convert_to_tensor(variable) for i, variable in enumerate(every)},
        **{f"alone/{i}": tf.convert_to_tensor(copy) for i, copy in enumerate(copies)},
    )
    return {"rank": hvd.rank()}


def other_partners():
    """Runs two concurrent jobs of two ranks, then jobs with other partners."""
    pairs, crossed = [[0, 1], [2, 3]], [[0, 3], [2, 1]]
    weight = tf.Variable(0.0)

    def average(gradient):
        with tf.GradientTape() as tape:
            loss = weight * gradient
        weight.assign(tape.gradient(loss, weight))

    by_engine = {
        engine: tf_libra.optimize("syneasgd", engine=engine)(tf.function(average))
        for engine in ("lanes", "horovod")
    }
    mine = tf.constant(float(harness.RANK))

    def averaged(engine):
        weight.assign(0.0)
        by_engine[engine](mine)
        return float(weight)

    def summed():
        tf_libra.collectives.connect(60)
        return float(tf_libra.collectives.all_reduce(mine, [0, 1], "sum"))

    found = {}
    whole = [list(range(harness.SIZE))]
    with places_of([*pairs, *crossed, *pairs, *crossed, *whole]) as places:
        join([*pairs], places[0:2])
        found["lanes"] = [averaged("lanes")]
        join([*crossed], places[2:4])
        found["sums"] = [summed()]
        join([*pairs], places[4:6])
        found["lanes"].append(averaged("lanes"))
        found["sums"].append(summed())
        found["horovod"] = [averaged("horovod")]
        join([*crossed], places[6:8])
        found["horovod"].append(averaged("horovod"))
        found["lanes"].append(averaged("lanes"))
        join(whole, places[8:])
    return found


def change_places():
    """Ends Horovod's job and starts another, with ranks in reverse order."""
    ranks = [list(range(harness.SIZE))[::-1]]
    with places_of(ranks) as places:
        join(ranks, places)


@contextlib.contextmanager
def places_of(jobs):
    """Yields each rank's environment, by job; rank 0 runs the rendezvous."""
    with contextlib.ExitStack() as stack:
        places = []
        if hvd.rank() == 0:
            hosts = (f"localhost:{len(ranks)}" for ranks in jobs)
            places = [stack.enter_context(meeting(host, "127.0.0.1", "lo")) for host in hosts]
        yield hvd.broadcast_object(places, name="places")


def join(jobs, places):
    """Ends Horovod's job and starts others, of the given ranks of the first, in this order."""
    hvd.shutdown()
    for ranks, of_these in zip(jobs, places, strict=True):
        if harness.RANK in ranks:
            os.environ.update(of_these[ranks.index(harness.RANK)])
    hvd.init()
    harness.barrier()


def lost_with_ranks():
    """Trains a variable that was not restored after a loss of ranks, which hand nothing over."""
    stack = Stack()
    step = tf_libra.optimize(in_stages(2))(tf.function(stack.step))
    share = [harness.own(tensor) for tensor in batch(0)]
    step(*share)
    with mock.patch.object(read_service(), "_reads", {}):
        change_places()
    step(*share)


# These are last: afterwards ranks differ from those of the harness.
if harness.SIZE == 2:
    cases.add("another_job", another_job)
    cases.add("lost_with_ranks", lost_with_ranks)
if harness.SIZE == 4:
    cases.add("other_partners", other_partners)
