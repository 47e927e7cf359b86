"""Tensors in parts: plans that cut them at every place, in every dtype, on one stream to four.

The job has as many workers as the largest case; for the others the first of them meet.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE, Cases
from sparse_rows import sparse_averages

import tf_libra
from tf_libra import strategies
from tf_libra.backends import engine as engine_lib
from tf_libra.backends import lanes_bootstrap
from tf_libra.capture import instrumented_function
from tf_libra.coordination import horovod_job
from tf_libra.coordination.control_plane import ControlConfig
from tf_libra.runtime import grappler
from tf_libra.specs.plan import Plan, TensorGroup

cases = Cases()
SHAPES = [(3,), (), (2, 2), (5, 1)]  # 13 elements
MOST_STREAMS = 4
DTYPES = ("float16", "bfloat16", "float32", "float64")


def elements() -> int:
    return sum(int(np.prod(shape)) for shape in SHAPES)


class Linear:
    """Variables whose gradient is what is passed, so that their sums are known."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.variables = [
            tf.Variable(tf.zeros(shape, dtype), name=f"v{i}") for i, shape in enumerate(SHAPES)
        ]

    def step(self, *gradients: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            terms = [tf.reduce_sum(v * x) for v, x in zip(self.variables, gradients, strict=True)]
            loss = tf.add_n(terms)
        for variable, gradient in zip(
            self.variables, tape.gradient(loss, self.variables), strict=True
        ):
            variable.assign(gradient)


def plan_of(
    variables: Sequence[Any],
    cuts: Sequence[int],
    streams: Sequence[int],
    threads: Sequence[int],
    size: int = SIZE,
) -> Plan:
    """A plan of all tensors that begins a group at every one of `cuts`, which count elements."""
    whole = models.plan_of(variables, size, [0, len(variables)], [1])
    item = tf.as_dtype(variables[0].dtype).size
    stops = list(itertools.accumulate(whole.num_bytes))
    edges_at = []  # tensor and byte in it
    for cut in (item * cut for cut in cuts):
        tensor = sum(stop <= cut for stop in stops)
        edges_at.append((tensor, cut - (stops[tensor - 1] if tensor else 0)))
    edges = [(0, 0), *edges_at, (len(stops), 0)]
    groups = [
        TensorGroup(
            start=start,
            stop=stop + 1 if stop_byte else stop,
            num_threads=threads[i % len(threads)],
            stream=streams[i % len(streams)],
            start_byte=start_byte,
            stop_byte=stop_byte or None,
        )
        for i, ((start, start_byte), (stop, stop_byte)) in enumerate(itertools.pairwise(edges))
    ]
    return Plan(
        groups=tuple(groups),
        tensor_names=whole.tensor_names,
        num_bytes=whole.num_bytes,
        num_workers=size,
        strategy="by hand",
        dtypes=whole.dtypes,
    )


def random_layouts(count: int, size: int) -> list[tuple[list[int], list[int], list[int]]]:
    """Cuts, streams and threads; the same on every rank."""
    random = np.random.default_rng(size)
    found = []
    for index in range(count):
        cuts = random.choice(np.arange(1, elements()), int(random.integers(2, 8)), replace=False)
        streams = 1 + index % MOST_STREAMS
        order = random.integers(0, streams, size=8).tolist()
        found.append((sorted(cuts.tolist()), order, random.integers(1, 4, size=3).tolist()))
    return found


def gradients(rank: int, number: int, size: int) -> list[np.ndarray]:
    """Returns small integers, whose averages over up to five ranks times `size` are exact."""
    random = np.random.default_rng([rank, number])
    return [size * random.integers(-9, 9, size=shape).astype("float64") for shape in SHAPES]


def connected_engine(size: int) -> engine_lib.Engine | None:
    """The engine of the first `size` ranks; None on the others, which have to call this, too."""
    job, terms = horovod_job.HorovodJob(), ControlConfig(3 * MOST_STREAMS, 60.0, 30.0)
    world = job.world(terms.timeout_seconds)
    takes_part = world.rank < size
    world = dataclasses.replace(world, size=size, local_size=size)
    mine = lanes_bootstrap.offer(world, terms.num_lanes) if takes_part else {}
    offers = job.exchange_json(mine, terms.timeout_seconds)
    return lanes_bootstrap.connect(world, terms, offers[:size]) if takes_part else None


def run_all(dtype: str, size: int, layouts: Sequence[tuple[Any, Any, Any]]) -> list[str]:
    """Returns the layouts whose result is not the average of `size` ranks."""
    engine = connected_engine(size)
    if engine is None:
        return []
    model = Linear(dtype)
    call = instrumented_function.InstrumentedFunction(tf.function(model.step), lambda trace: None)
    wrong = []
    for number, (cuts, streams, threads) in enumerate(layouts):
        plan = plan_of(model.variables, cuts, streams, threads, size)
        grappler.register(plan)
        engine.set_step(number)
        mine = [tf.constant(gradient, dtype) for gradient in gradients(RANK, number, size)]
        with grappler.calling(grappler.call_options(plan)):
            call(*mine)
        everyone = [gradients(rank, number, size) for rank in range(size)]
        expected = [sum(tensors) / size for tensors in zip(*everyone, strict=True)]
        found = [tf.cast(v, "float64").numpy() for v in model.variables]
        right = all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
        given = [tf.cast(tensor, "float64").numpy() for tensor in mine]
        untouched = all(np.array_equal(a, b) for a, b in zip(given, everyone[RANK], strict=True))
        report = grappler.report(plan).latest
        in_force = report.in_force and len(report.groups) == len(plan.groups)
        if not (right and untouched and in_force):
            wrong.append(f"{dtype} {cuts} {streams} {right} {untouched} {report.skipped[:2]}")
        grappler.unregister(plan)
    return wrong


def add_case(dtype: str, size: int) -> None:
    def run() -> Any:
        everywhere = [([cut], [0, 1], [1]) for cut in range(1, elements())]
        singles = [(list(range(1, elements())), list(range(4)), [1, 2])]
        return run_all(dtype, size, [*everywhere, *singles, *random_layouts(12, size)])

    cases.add(f"cut_{dtype}_{size}", run)


def sizes_of(dtype: str) -> tuple[int, int]:
    """Returns an even and an odd number of ranks; each number is that of two dtypes."""
    index = DTYPES.index(dtype)
    return 2 + index, 2 + (index + 1) % 4


for each in DTYPES:
    for of_these in sizes_of(each):
        add_case(each, of_these)


for of_these in (4, 5):
    cases.add(f"sparse_{of_these}", partial(sparse_averages, cases, connected_engine, of_these))


@cases
def trained_in_parts() -> Any:
    """A plan that splits a real model's tensors, on three streams, compared with one process."""
    saved: dict[str, Any] = {}
    model, alone = (models.HandWritten("float64", "momentum") for _ in range(2))
    total = sum(int(np.prod(v.shape)) for v in model.variables)
    cuts = sorted({total * i // 7 for i in range(1, 7)})
    plan = plan_of(model.variables, cuts, [0, 1, 2], [2, 1])
    step = tf_libra.optimize(plan=plan)(tf.function(model.step))
    for number in range(4):
        joint = models.batch(number, SIZE, "float64")
        step(*models.part(joint, RANK, SIZE))
        alone.step(*joint)
    for who, trained in {"ours": model, "alone": alone}.items():
        saved |= {f"{who}/{name}": value for name, value in trained.weights().items()}
    cases.save(**saved)
    return {"plan": step.plan == plan, "cut": plan.cuts_tensors}


class Branching(models.HandWritten):
    """Every call decides which gradients there are: all of them, or those of the last layer."""

    def step(self, inputs: Any, labels: Any, everything: Any) -> None:
        if everything:
            with tf.GradientTape() as tape:
                loss = self.loss(inputs, labels)
            self.update(tape.gradient(loss, self.variables))
        else:
            last = self.variables[-2:]
            with tf.GradientTape() as tape:
                loss = 2.0 * self.loss(inputs, labels)
            for variable, gradient in zip(last, tape.gradient(loss, last), strict=True):
                variable.assign_sub(0.1 * gradient)


@cases
def gradients_that_differ_from_call_to_call() -> Any:
    """Searches units on two streams and trains under the result, compared with one process."""
    model, alone = (Branching("float64", "sgd") for _ in range(2))
    strategy = strategies.Aiacc(unit_bytes=200, streams=(1, 2), threads=(1,))
    step = tf_libra.optimize(strategy, max_tuning_steps=12)(tf.function(model.step))
    for number in range(18):
        joint = models.batch(number, SIZE, "float64")
        everything = number % 3 != 1
        step(*models.part(joint, RANK, SIZE), tf.constant(everything))
        alone.step(*joint, everything)
    saved: dict[str, Any] = {}
    for who, trained in {"ours": model, "alone": alone}.items():
        saved |= {f"{who}/{name}": value for name, value in trained.weights().items()}
    cases.save(**saved)
    return {"plan": str(step.phase) == "run", "cut": step.plan.cuts_tensors}


if __name__ == "__main__":
    hvd.init()
    cases.run()
