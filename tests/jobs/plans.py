"""Steps under given plans: `plans.py PLAN.json`, a plan of `models.HandWritten` in float32."""

import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from external_planner import Halves
from harness import FOLDER, RANK, SIZE, Cases
from plan_models import Embedding, Looping, MixedDtypes, Nested, Unrolled

import tf_libra
from tf_libra import strategies
from tf_libra.backends import engine as engine_lib
from tf_libra.backends import lanes_bootstrap
from tf_libra.capture import instrumented_function
from tf_libra.coordination import horovod_job
from tf_libra.coordination.control_plane import ControlConfig
from tf_libra.profiling.executed_graph import GraphCapture
from tf_libra.runtime import grappler
from tf_libra.runtime.step_profiler import ProfilingPolicy

cases = Cases()
PLAN_FILE = sys.argv[1]


def shard(number: int, dtype: str = "float32", size: int = models.SHARD) -> tuple[Any, Any]:
    return models.part(models.batch(number, SIZE, dtype, size), RANK, SIZE)


def executed() -> list[dict[str, Any]]:
    """Returns the all-reduces since the last call."""
    engine = engine_lib.running()
    assert engine is not None
    return [
        {
            "step": r.step,
            "group": r.group,
            "num_threads": r.num_threads,
            "num_bytes": r.num_bytes,
            "tensor_names": list(r.tensor_names),
            "plan": r.plan,
        }
        for r in sorted(engine.drain_telemetry(), key=lambda r: r.sequence)
    ]


# Whole, or started apart.
OPS = ("LibraAllReduce", "LibraAllReduceStart")


def all_reduces(graphs: tuple[Any, ...]) -> list[dict[str, Any]]:
    """The all-reduces of executed graphs, each with those that must have started before."""
    found = []
    for graph in graphs:
        nodes = {node.name: node for node in graph.node}
        for node in graph.node:
            if node.op not in OPS:
                continue
            before, left = set(), [name[1:] for name in node.input if name[0] == "^"]
            while left:
                name = left.pop()
                if nodes[name].op in OPS:
                    before.add(nodes[name].attr["group"].i)
                    continue
                left += [i.lstrip("^").partition(":")[0] for i in nodes[name].input]
            found.append(
                {
                    "group": node.attr["group"].i,
                    "num_threads": node.attr["num_threads"].i,
                    "tensor_names": [name.decode() for name in node.attr["tensor_names"].list.s],
                    "after_groups": sorted(before),
                }
            )
    return sorted(found, key=lambda group: group["group"])


def against_alone(
    make: Callable[[], Any],
    data: Callable[[int, bool], tuple[Any, ...]],
    num_steps: int = 4,
    **options: Any,
) -> Any:
    """Trains by `make()` under `options` and alone; saves both; returns the optimized step."""
    saved, step = {}, None
    for alone in (True, False):
        model = make()
        chosen = tf.function(model.step)
        if not alone:
            step = chosen = tf_libra.optimize(**{"strategy": "libra"} | options)(chosen)
        for number in range(num_steps):
            chosen(*data(number, alone))
        who = "alone" if alone else "ours"
        saved |= {f"{who}/{name}": value for name, value in model.weights().items()}
    cases.save(**saved)
    return step


def joint_or_shard(dtype: str) -> Callable[[int, bool], tuple[Any, ...]]:
    def data(number: int, alone: bool) -> tuple[Any, ...]:
        joint = models.batch(number, SIZE, dtype)
        return joint if alone else models.part(joint, RANK, SIZE)

    return data


@cases
def three_groups() -> Any:
    """The plan file, found again in the executed graph and in what was executed."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(plan=PLAN_FILE)(tf.function(model.step))
    # Rank 0 captures graphs itself.
    with GraphCapture() as capture:
        step(*shard(0))
    phases = [str(step.phase)]
    if RANK == 0:
        graphs: list[dict[str, Any]] = []
    else:
        graphs = all_reduces(capture.graphs)
    telemetry = []
    for number in range(1, 5):
        step(*shard(number))
        # Rank 0 looks at the first steps under a plan itself.
        telemetry += executed()
    report = grappler.report(step.plan).latest
    cases.save(**model.weights())
    return {
        "phases": phases,
        "graph": graphs,
        "telemetry": telemetry,
        "report": [[g.index, g.num_threads, [t.name for t in g.tensors]] for g in report.groups],
        "skipped": report.skipped,
        "explained": step.explain(),
        "plan_id": step.plan.short_id,
    }


@cases
def second_plan() -> Any:
    """Two plans one after the other over one trace."""
    engine = lanes_bootstrap.connect_lanes(horovod_job.HorovodJob(), ControlConfig(3, 60.0, 30.0))
    model = models.HandWritten("float32", "sgd")
    traced = []
    call = instrumented_function.InstrumentedFunction(
        tf.function(model.step), lambda trace: traced.append(trace.reduced)
    )
    result = []
    for number, (edges, threads) in enumerate([([0, 3, 6], [1, 3]), ([0, 1, 4, 6], [2, 1, 2])]):
        plan = models.plan_of(model.variables, SIZE, edges, threads)
        grappler.register(plan)
        engine.set_step(number)
        with grappler.calling(grappler.call_options(plan)):
            call(*shard(number))
        result.append({"id": plan.short_id, "telemetry": executed()})
    return {"traces": len(traced), "plans": result}


@cases
def another_batch_size() -> Any:
    """A shorter last batch on all ranks retraces; the plan stays active."""

    def data(number: int, alone: bool) -> tuple[Any, ...]:
        joint = models.batch(number, SIZE, "float32", 2 if number % 4 == 3 else models.SHARD)
        return joint if alone else models.part(joint, RANK, SIZE)

    step = against_alone(
        lambda: models.HandWritten("float32", "sgd"), data, num_steps=5, plan=PLAN_FILE
    )
    executed()
    step(*shard(9, size=2))
    return {"telemetry": executed(), "phase": str(step.phase)}


@cases
def another_batch_size_on_one_rank() -> Any:
    """One rank retraces, the others do not."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(plan=PLAN_FILE)(tf.function(model.step))
    for number in range(6):
        step(*shard(number, size=3 if RANK == SIZE - 1 and number >= 3 else models.SHARD))
    cases.save(**model.weights())


@cases
def after_backward() -> Any:
    """A plan that communicates after backward trains right too."""
    plan = models.plan_of(
        models.HandWritten("float64", "momentum").variables, SIZE, [0, 2, 6], [1, 2], True
    )
    against_alone(
        lambda: models.HandWritten("float64", "momentum"), joint_or_shard("float64"), plan=plan
    )


def id_batch(number: int, alone: bool) -> tuple[Any, ...]:
    random = np.random.default_rng(number)
    joint = (
        tf.constant(random.integers(0, 30, size=(SIZE * 4, 5))),
        tf.constant(random.integers(0, models.CLASSES, size=SIZE * 4)),
    )
    return joint if alone else models.part(joint, RANK, SIZE)


@cases
def sparse_gradients() -> Any:
    """IndexedSlices, with different rows on every rank."""
    against_alone(Embedding, id_batch, strategy="wfbp")


@cases
def mixed_dtypes() -> Any:
    """A plan whose groups mix dtypes."""
    plan = models.plan_of(MixedDtypes().variables, SIZE, [0, 3, 5], [2, 1])
    step = against_alone(MixedDtypes, joint_or_shard("float32"), plan=plan)
    executed()
    step(*shard(9))
    return executed()


@cases
def two_updates_in_one_step() -> Any:
    """One group of all is not possible: the second gradients need the first averages."""
    step = against_alone(
        lambda: Unrolled("float64", "sgd"),
        joint_or_shard("float64"),
        num_steps=16,
        strategy="syneasgd",
        max_tuning_steps=8,
    )
    return str(step.phase)


@cases
def planner_from_outside() -> Any:
    """Registers a planner, and trains with it."""
    strategies.register(Halves)
    step = against_alone(
        lambda: models.HandWritten("float64", "sgd"),
        joint_or_shard("float64"),
        num_steps=20,
        strategy=Halves(num_threads=2),
        max_tuning_steps=18,
        tuning=tf_libra.Tuning(max_seconds=1e6),
    )
    assert step.plan is not None
    return {
        "phase": str(step.phase),
        "strategy": step.plan.strategy,
        "stops": [group.stop for group in step.plan.groups],
        "threads": [group.num_threads for group in step.plan.groups],
    }


@cases
def loop_inside_of_the_step() -> Any:
    step = against_alone(
        lambda: Looping("float64", "sgd"),
        joint_or_shard("float64"),
        num_steps=16,
        strategy=tf_libra.strategies.Libra(threads=(1, 2)),
        max_tuning_steps=10,
    )
    return str(step.phase)


@cases
def closed() -> Any:
    """Returns whether each call was judged as written, by the number of calls before `close`."""
    judged: list[bool] = []
    usual = ProfilingPolicy.should_trace

    def should_trace(
        self: ProfilingPolicy, calls_under_plan: int, is_recorded: bool, num_checked: int
    ) -> bool:
        judged.append(is_recorded)
        return usual(self, calls_under_plan, is_recorded, num_checked)

    found = {}
    with mock.patch.object(ProfilingPolicy, "should_trace", should_trace):
        for closed_before in (0, 1, 3):
            model = models.HandWritten("float32", "sgd")
            logdir = FOLDER / f"closed_before_{closed_before}"
            step = tf_libra.optimize(plan=PLAN_FILE, logdir=logdir)(tf.function(model.step))
            for number in range(3):
                if number == closed_before:
                    step.close()
                step(*shard(number))
            found[closed_before] = list(judged)
            judged.clear()
    return found


@cases
def nested_function() -> Any:
    against_alone(
        lambda: Nested("float64", "sgd"), joint_or_shard("float64"), num_steps=4, strategy="wfbp"
    )


class Trainer:
    """A decorated method."""

    def __init__(self) -> None:
        self.trained = models.HandWritten("float64", "sgd")

    @tf_libra.optimize("wfbp")
    @tf.function
    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """A user's docstring."""
        return self.trained.step(inputs, labels)


@cases
def decorated_method() -> Any:
    trainer = Trainer()
    for number in range(3):
        trainer.step(*shard(number, "float64"))
    cases.save(**trainer.trained.weights())
    return {"doc": Trainer.step.__doc__, "name": Trainer.step.__name__}


@cases
def plain_function() -> Any:
    """Made a `tf.function`; keyword arguments and structured results go through."""
    model = models.HandWritten("float64", "sgd")

    @tf_libra.optimize("wfbp")
    def step(inputs: tf.Tensor, *, labels: tf.Tensor, scale: float = 1.0) -> dict[str, Any]:
        return {"loss": model.step(inputs, labels) * scale, "seen": tf.shape(inputs)[0]}

    inputs, labels = shard(0, "float64")
    result = step(inputs, labels=labels, scale=2.0)
    return {
        "keys": sorted(result),
        "seen": int(result["seen"]),
        "wrapped": step.__wrapped__.__name__,
        "phase": str(step.phase),
    }


@cases
def two_decorated_functions() -> Any:
    """Two models in turns, as for a GAN; the second asks for fewer threads."""
    first, second = (models.HandWritten("float64", "sgd", seed) for seed in (1, 2))
    step = tf_libra.optimize(tf_libra.strategies.Libra(threads=(1, 2)), max_tuning_steps=9)(
        tf.function(first.step)
    )
    other = tf_libra.optimize("wfbp", max_tuning_steps=6)(tf.function(second.step))
    for number in range(14):
        step(*shard(number, "float64"))
        other(*shard(number, "float64"))
    alone = [models.HandWritten("float64", "sgd", seed) for seed in (1, 2)]
    for number in range(14):
        for model in alone:
            model.step(*models.batch(number, SIZE, "float64"))
    cases.save(
        **{
            f"ours/{i}{k}": v for i, m in enumerate((first, second)) for k, v in m.weights().items()
        },
        **{f"alone/{i}{k}": v for i, m in enumerate(alone) for k, v in m.weights().items()},
    )
    return [str(step.phase), str(other.phase)]


if __name__ == "__main__":
    hvd.init()
    cases.run()
