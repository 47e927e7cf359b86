"""Functions that share the engine of their process, which grows lanes; and what it runs out of."""

import contextlib
import dataclasses
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import models
import tensorflow as tf
from harness import RANK, SIZE, Cases, barrier

import tf_libra
from tf_libra.autotune import density
from tf_libra.backends import engine as engine_lib

cases = Cases()
LAST = SIZE - 1
DTYPE = "float64"
STEPS = 4
Share = Callable[[Any], Any]


def part(joint: Any) -> Any:
    return models.part(joint, RANK, SIZE)


def optimized(model: models.HandWritten, threads: list[int], **options: Any) -> Any:
    """The step of `model` under a plan that uses these threads, a group for each."""
    count = len(model.variables)
    edges = [count * i // len(threads) for i in range(len(threads) + 1)]
    plan = models.plan_of(model.variables, SIZE, edges, threads)
    return tf_libra.optimize(plan=plan, **options)(tf.function(model.step))


def num_lanes() -> int:
    engine = engine_lib.running()
    assert engine is not None
    return engine.num_lanes


def num_open() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


@contextlib.contextmanager
def soft_limit(kind: int, value: int) -> Iterator[None]:
    """Sets a soft limit for a while, which any code may raise again."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


class WithTable(models.HandWritten):
    """A table more, of which the loss depends on 2 % of each row: 5 of 256 blocks."""

    def __init__(self, dtype: str, optimizer: str) -> None:
        super().__init__(dtype, optimizer)
        self.variables.append(tf.Variable(tf.ones([models.FEATURES, 1 << 14], dtype), name="table"))

    def loss(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        *layers, table = variables = self.variables
        self.variables = layers
        loss = super().loss(inputs, labels)
        self.variables = variables
        return loss + tf.reduce_mean(tf.nn.tanh(inputs @ table[:, :320]))


@cases
def functions_with_more_and_more_threads() -> Any:
    """Each step of the first is followed by one of the others, as a generator's by a critic's."""
    threads = [[1], [1, 4, 2], [3, 1], [6]]
    ours = [models.HandWritten(DTYPE, "momentum") for _ in threads]
    alone = [models.HandWritten(DTYPE, "momentum") for _ in threads]
    steps = [optimized(model, each) for model, each in zip(ours, threads, strict=True)]
    lanes = []
    for number in range(STEPS):
        for index, step in enumerate(steps):
            joint = models.batch(number * 10 + index, SIZE, DTYPE)
            step(*part(joint))
            alone[index].step(*joint)
            lanes.append(num_lanes())
    cases.save(
        **{
            f"{who}/{index}/{name}": value
            for who, trained in {"ours": ours, "alone": alone}.items()
            for index, model in enumerate(trained)
            for name, value in model.weights().items()
        }
    )
    return {"lanes": lanes, "threads": [[g.num_threads for g in s.plan.groups] for s in steps]}


@cases
def memory_shared_with_others() -> Any:
    """Returns the number of memory segments that one lane shares, and saves the weights.

    With them it returns the weights' names that differ if ranks copy blocks of zeros, too.
    """
    ours, copied, alone = (WithTable(DTYPE, "sgd") for _ in range(3))
    step, copy = optimized(ours, [1]), optimized(copied, [1])
    for number in range(STEPS):
        joint = models.batch(number, SIZE, DTYPE)
        step(*part(joint))
        engine = engine_lib.running()
        assert engine is not None
        engine.omit_zeros(False)
        copy(*part(joint))
        engine.omit_zeros(True)
        alone.step(*joint)
    copied_weights = copied.weights()
    differing = [
        name
        for name, value in ours.weights().items()
        if value.tobytes() != copied_weights[name].tobytes()
    ]
    cases.save(
        **{f"ours/{name}": value for name, value in ours.weights().items()},
        **{f"alone/{name}": value for name, value in alone.weights().items()},
    )
    maps = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[4] for line in maps if "/memfd:tf_libra" in line}), differing


@cases
def tuned_after_another() -> Any:
    """Strategies that measure: what the second tries out needs lanes that the first has not.

    Its table has a sparse gradient, whose density is measured. How long it takes to leave out its
    zeros depends on the machine, and is set to nothing.
    """
    density.omitted_cost = lambda records: 0.0
    first, second = models.HandWritten(DTYPE, "sgd"), WithTable(DTYPE, "sgd")
    narrow = tf_libra.optimize("mg-wfbp", max_tuning_steps=3)(tf.function(first.step))
    wide = tf_libra.optimize(tf_libra.strategies.Libra(threads=(1, 4)), max_tuning_steps=6)(
        tf.function(second.step)
    )
    for number in range(10):
        joint = part(models.batch(number, SIZE, DTYPE))
        narrow(*joint)
        wide(*joint)
    return {
        "lanes": num_lanes(),
        "phases": [narrow.phase, wide.phase],
        "density": {tensor.name: tensor.density for tensor in wide.profile.tensors},
        "explained": wide.explain(),
    }


@cases
def concurrent_all_reduces() -> Any:
    """Groups on streams of their own, by hand and as ASC-WFBP plans them."""
    joint = [models.batch(number, SIZE, DTYPE) for number in range(12)]
    by_hand, planned, alone = (models.HandWritten(DTYPE, "momentum") for _ in range(3))
    count = len(by_hand.variables)
    plan = models.plan_of(
        by_hand.variables, SIZE, range(count + 1), [1 + i % 2 for i in range(count)]
    )
    streams = (dataclasses.replace(g, stream=i % 3) for i, g in enumerate(plan.groups))
    plan = dataclasses.replace(plan, groups=tuple(streams))
    ours = tf_libra.optimize(plan=plan)(tf.function(by_hand.step))
    asc = tf_libra.optimize("asc-wfbp", max_tuning_steps=6)(tf.function(planned.step))
    for batch in joint:
        ours(*part(batch))
        asc(*part(batch))
        alone.step(*batch)
    cases.save(
        **{
            f"{who}/{name}": value
            for who, model in {"by_hand": by_hand, "planned": planned, "alone": alone}.items()
            for name, value in model.weights().items()
        }
    )
    return {"needed": plan.num_lanes, "lanes": num_lanes(), "phase": asc.phase}


@cases
def two_concurrent_as_measured() -> Any:
    """Runs ASC-WFBP with the default number of tuning steps."""
    joint = part(models.batch(0, SIZE, DTYPE))
    step = tf_libra.optimize("asc-wfbp", tuning=tf_libra.Tuning(max_seconds=600))(
        tf.function(models.HandWritten(DTYPE, "sgd").step)
    )
    while step.plan is None:
        step(*joint)
    step(*joint)
    plan = step.plan
    return {"streams": plan.num_streams, "contention": plan.contention, "notes": plan.notes}


@cases
def soft_limit_of_descriptors() -> Any:
    step = optimized(models.HandWritten(DTYPE, "sgd"), [4])
    with soft_limit(resource.RLIMIT_NOFILE, num_open() + 3):
        step(*part(models.batch(0, SIZE, DTYPE)))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft == hard


def grow_on_few(limited: Any) -> None:
    """A second function needs 40 lanes, and the last rank has what `limited` leaves it."""
    narrow, wide = (models.HandWritten(DTYPE, "sgd") for _ in range(2))
    joint = part(models.batch(0, SIZE, DTYPE))
    optimized(narrow, [1])(*joint)
    step = optimized(wide, [40])
    with limited() if RANK == LAST else contextlib.nullcontext():
        step(*joint)


@cases
def thread_that_cannot_start() -> None:
    def limited() -> Any:
        # A thread wants megabytes of address space for its stack.
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return soft_limit(resource.RLIMIT_AS, pages * os.sysconf("SC_PAGE_SIZE") + (48 << 20))

    grow_on_few(limited)


# Unprivileged processes cannot raise a hard limit again.


def limit_for_good() -> Any:
    most = num_open() + 6
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return contextlib.nullcontext()


@cases
def descriptors_that_one_rank_cannot_have() -> None:
    grow_on_few(limit_for_good)


@cases
def descriptors_that_nobody_can_have() -> None:
    limit_for_good()
    barrier()
    step = optimized(models.HandWritten(DTYPE, "sgd"), [40], engine="lanes")
    step(*part(models.batch(0, SIZE, DTYPE)))


if __name__ == "__main__":
    hvd.init()
    cases.run()
