"""Backends that are not lanes: Horovod, on Gloo, and a toy from outside of the package."""

import contextlib
import dataclasses
import os
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE, Cases, restart_engine, restart_horovod

import tf_libra
from tf_libra import strategies
from tf_libra.backends import backend, engine_selection
from tf_libra.backends.external_op_backend import ExternalOpBackend
from tf_libra.coordination import control_plane
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.profiling.executed_graph import GraphCapture
from tf_libra.runtime import grappler
from tf_libra.specs.plan import Plan

cases = Cases()
EDGES, THREADS = (0, 2, 5, 6), (1, 2, 1)
# 6 steps of one all-reduce, 4 that measure, 4 that sample.
TUNING_STEPS = 14


# The calls that the toy received.
begun: list[bool] = []
applied: list[Plan] = []


@backend.register
@dataclass(frozen=True)
class Toy(ExternalOpBackend):
    """Writes Horovod's op under a name of its own, and receives thread counts."""

    name: ClassVar[str] = "toy"
    op: ClassVar[str] = "HorovodGroupedAllreduce"
    max_threads: ClassVar[int] = 3

    def applicable(self, strategy: tf_libra.strategies.Strategy) -> tf_libra.strategies.Strategy:
        return strategy

    def begin_step(self) -> None:
        begun.append(True)

    def apply(self, plan: Plan) -> None:
        applied.append(plan)

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        return (f"a toy runs {plan.strategy}",)


class Tape(models.HandWritten):
    """A step that averages with Horovod by itself, in sums."""

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
        self.update([gradient / SIZE for gradient in tape.gradient(loss, self.variables)])
        return loss


class HalfInBfloat16(models.HandWritten):
    """One variable of a dtype that Horovod does not reduce."""

    def __init__(self) -> None:
        super().__init__("float32", "sgd")
        self.variables[3] = tf.Variable(tf.cast(self.variables[3], tf.bfloat16), name="b1")

    def loss(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        original, self.variables = self.variables, [tf.cast(v, tf.float32) for v in self.variables]
        try:
            return super().loss(inputs, labels)
        finally:
            self.variables = original

    def update(self, gradients: Any) -> None:
        for variable, gradient in zip(self.variables, gradients, strict=True):
            variable.assign_sub(tf.cast(0.1, gradient.dtype) * gradient)

    def weights(self) -> dict[str, np.ndarray]:
        return {name: value.astype("float32") for name, value in super().weights().items()}


class HalfInALoop(HalfInBfloat16):
    """A gradient for each turn of a loop, with the same name every time, and one of bfloat16."""

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                loss = self.loss(inputs, labels)
            self.update(tape.gradient(loss, self.variables))
        return loss


def open_sockets() -> set[str]:
    """The sockets of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {link for link in found if link.startswith("socket:")}


def new_sockets(engine: str) -> int:
    """Returns the number of sockets that a step opens in mid-job, once it has all-reduced data."""
    step_interrupts()  # has a pair of its own
    before = open_sockets()
    model = hand("float32")
    step = tf_libra.optimize("wfbp", engine=engine, check_numerics="skip")(tf.function(model.step))
    for number in range(2):
        step(*models.part(models.batch(number, SIZE, "float32"), RANK, SIZE))
    step.check_variables()
    return len(open_sockets() - before)


@cases
def sockets() -> Any:
    """Counts the sockets that Horovod opens before lanes exist, and those of lanes."""
    by_horovod = new_sockets("horovod")
    return {"horovod": by_horovod, "lanes": new_sockets("lanes")}


@cases
def differ_in_strategy() -> Any:
    """An error that all ranks come to alike: Horovod, and the job, go on."""
    found = []
    for _ in range(2):
        model = hand("float32")
        strategy = "mg-wfbp" if RANK else "wfbp"
        step = tf_libra.optimize(strategy, engine="horovod")(tf.function(model.step))
        try:
            step(*models.part(models.batch(0, SIZE, "float32"), RANK, SIZE))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return {"errors": found, "horovod": hvd.allreduce(tf.ones([]), op=hvd.Sum).numpy().tolist()}


@cases
def auto() -> Any:
    """Left to us, here and where ranks say that they have GPUs, few descriptors and so on."""
    found, decide = [], engine_selection.circumstances
    try:
        for engine, says in (
            ("auto", {"num_gpus": 0, "has_nccl": False}),
            ("auto", {"num_gpus": 1, "has_nccl": True}),
            # A fact that no rank can know from its own environment.
            ("auto", {"num_gpus": int(RANK == 0), "has_nccl": True}),
            ("auto", {"most_descriptors": 100 if RANK else 1 << 20}),
            ("auto", {"most_descriptors": 100, "only_lanes": "threads" if RANK else ""}),
            ("horovod" if RANK else "auto", {}),
        ):
            engine_selection.circumstances = lambda *args, says=says: dataclasses.replace(
                decide(*args), **says
            )
            model = hand("float32")
            step = tf_libra.optimize("wfbp", engine=engine)(tf.function(model.step))
            step(*models.part(models.batch(0, SIZE, "float32"), RANK, SIZE))
            found.append([plane.__class__.__name__ for plane in control_plane.running()])
            restart_engine()  # else it would go on with what runs
    finally:
        engine_selection.circumstances = decide
    return found


@cases
def joined() -> Any:
    model = hand("float32")
    step = tf_libra.optimize("wfbp", engine="horovod")(tf.function(model.step))
    step(*models.part(models.batch(0, SIZE, "float32"), RANK, SIZE))
    if RANK:
        time.sleep(3.0)  # others wait in join meanwhile, in which nothing may be gathered
    hvd.join()
    step(*models.part(models.batch(1, SIZE, "float32"), RANK, SIZE))
    return str(step.phase)


def train(step: Any, model: Any, num_steps: int, dtype: str, whole: bool) -> dict[str, Any]:
    for number in range(num_steps):
        joint = models.batch(number, SIZE, dtype)
        step(*(joint if whole else models.part(joint, RANK, SIZE)))
    return model.weights()


def compare(kind: Any, dtype: str, num_steps: int, options: dict[str, Any]) -> Any:
    alone, model = kind[0](), kind[1]()
    arrays = train(alone.step, alone, num_steps, dtype, whole=True)
    saved = {f"alone/{name}": value for name, value in arrays.items()}
    if "plan" in options:
        options = options | {"plan": models.plan_of(model.variables, SIZE, EDGES, THREADS)}
    step = tf_libra.optimize(**{"strategy": "libra", "engine": "horovod"} | options)(
        tf.function(model.step)
    )
    # Rank 0 captures graphs by itself.
    with GraphCapture() if RANK else tf.name_scope("unused") as capture:
        arrays = train(step, model, num_steps, dtype, whole=False)
    saved |= {f"ours/{name}": value for name, value in arrays.items()}
    cases.save(**saved)
    groups = {group.node: group for group in grappler.report(step.plan).latest.groups}
    executed = [n for graph in getattr(capture, "graphs", ()) for n in graph.node]
    return {
        "phase": str(step.phase),
        "plan": step.plan.to_json(),
        "profiled": step.profile is not None,
        "modelled": step.cost_model is not None,
        "samples": [] if step.tuned is None else [s.num_threads for s in step.tuned.samples],
        "explained": step.explain(),
        "reported": [
            [group.index, group.num_threads, [t.name for t in group.tensors], group.control_inputs]
            for group in groups.values()
        ],
        "executed": {
            node.name: [
                node.op,
                [name.decode() for name in node.attr["_tf_libra_tensor_names"].list.s],
                [text[1:] for text in node.input if text[0] == "^"],
            ]
            for node in executed
            if node.op in ("HorovodGroupedAllreduce", "LibraAllReduce")
        },
    }


def hand(dtype: str = "float64") -> Any:
    return models.HandWritten(dtype, "momentum")


def script() -> Any:
    return Tape("float64", "momentum")


def add(name: str, *args: Any, **options: Any) -> None:
    cases.add(name, lambda: compare(*args, options))


def reported_toy() -> Any:
    """Returns the calls that the toy received in the case before, and the error that it raises."""
    refused = ""
    try:
        tf_libra.optimize(strategies.Libra(threads=(4,)), engine="toy")
    except ValueError as error:
        refused = str(error)
    return {
        "begun": len(begun),
        "applied": [plan.to_json() for plan in applied],
        "refused": refused,
    }


def condition_of_one_rank() -> Any:
    """Depends on one rank's own loss while plans are tried; then Horovod starts again."""
    model = models.Conditional()
    step = tf_libra.optimize("wfbp", engine="horovod", max_tuning_steps=4)(tf.function(model.step))
    message, before = "", {}
    try:
        for number in range(4):
            inputs, labels = models.part(models.batch(number, SIZE, "float32"), RANK, SIZE)
            before = model.weights()
            step(inputs * (np.nan if (RANK, number) == (1, 3) else 1.0), labels)
    except tf.errors.FailedPreconditionError as error:
        message = str(error)
    same = [bool((v == before[name]).all()) for name, v in model.weights().items()]
    restart_horovod()
    return {"message": message, "same": same}


@cases
def differ_in_engine() -> Any:
    model = hand("float32")
    engine = "horovod" if RANK else "lanes"
    step = tf_libra.optimize("wfbp", engine=engine)(tf.function(model.step))
    step(*models.part(models.batch(0, SIZE, "float32"), RANK, SIZE))


if __name__ == "__main__":
    hvd.init()
    add("given", (hand, hand), "float64", 3, plan="by hand")
    add("script", (hand, script), "float64", 3, plan="by hand")
    add("loop", (HalfInALoop, HalfInALoop), "float32", 2, plan="by hand")
    add("bfloat16", (HalfInBfloat16, HalfInBfloat16), "float32", 2, plan="by hand")
    unlimited = tf_libra.Tuning(max_seconds=1e6)
    for name in ("libra", "mg-wfbp"):
        add(
            name,
            (hand, hand),
            "float64",
            TUNING_STEPS + 4,
            strategy=name,
            max_tuning_steps=TUNING_STEPS,
            tuning=unlimited,
        )
    tuned = {
        "strategy": strategies.Libra(threads=(1, 3)),
        "max_tuning_steps": TUNING_STEPS,
        "tuning": unlimited,
    }
    add("toy", (hand, hand), "float64", TUNING_STEPS + 4, engine="toy", **tuned)
    cases.add("reported_toy", reported_toy)
    cases.add("condition_of_one_rank", condition_of_one_rank)
    cases.run()
