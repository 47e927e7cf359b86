"""Ranks that cannot rewrite the step, rewrite it differently, or switch plans differently."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context as tf_context

import tf_libra
import tf_libra.elastic
from failures.common import LAST, PLAN_FILE, cases, one_step, shard
from tf_libra import config
from tf_libra.autotune import (
    Phase,
    TensorSpec,
    Trial,
    TuningResult,
    measuring_plans,
    one_group_plan,
)
from tf_libra.autotune.trial_comparison import Candidate, Race
from tf_libra.decorator import Optimized
from tf_libra.internal import native
from tf_libra.runtime import grappler
from tf_libra.specs.plan import Plan, TensorGroup


@cases
def one_rank_cannot_rewrite() -> Any:
    """There, Grappler's time is up before it has come to an end."""
    original = grappler.call_options

    def call_options(*args: Any) -> Any:
        options = original(*args)
        config = config_pb2.ConfigProto.FromString(options.config_proto_serialized)
        if RANK == LAST:
            config.graph_options.rewrite_options.meta_optimizer_timeout_ms = 1
        return tf_context.FunctionCallOptions(config_proto=config)

    grappler.call_options = call_options
    try:
        one_step(plan=PLAN_FILE)
    finally:
        grappler.call_options = original


@cases
def ranks_group_differently() -> Any:
    """One has other groups under the same name. The step itself succeeds: it all-reduces nothing
    as yet.
    """
    model = models.HandWritten("float32", "sgd")
    given = Plan.from_json(Path(PLAN_FILE).read_text())
    # One that no other case has registered.
    plan = Plan(
        groups=(TensorGroup(0, 1, 1), TensorGroup(1, len(given.tensor_names), 1)),
        tensor_names=given.tensor_names,
        num_bytes=given.num_bytes,
        num_workers=given.num_workers,
        strategy="by hand",
    )

    @tf_libra.optimize(plan=plan)
    @tf.function
    def some_steps(inputs: tf.Tensor, labels: tf.Tensor, count: tf.Tensor) -> None:
        for _ in tf.range(count):
            model.step(inputs, labels)

    original = grappler.register

    def register(plan: Plan) -> None:
        groups = (TensorGroup(0, len(plan.tensor_names), 1),)
        fields = (
            "short_id",
            "fingerprint",
            "tensor_names",
            "num_bytes",
            "after_backward",
            "gathers",
        )
        of_plan = {name: getattr(plan, name) for name in (*fields, "wire_dtype")}
        parts = replace(plan, groups=groups).parts
        other = SimpleNamespace(groups=groups, parts=parts, **of_plan)
        original(other if RANK == LAST else plan)

    grappler.register = register
    try:
        some_steps(*shard(), tf.constant(0))
    finally:
        grappler.register = original


@cases
def plans_that_were_tried() -> Any:
    """Counts each plan's registrations in the library in the end, beyond those before its trial."""
    original = grappler.register
    unregister = native.load().c.TfLibraUnregisterPlan

    def count(plan: Plan) -> int:
        found = 0
        while unregister(plan.short_id.encode()) == 0:
            found += 1
        for _ in range(found):
            original(plan)
        return found

    tried: dict[str, tuple[Plan, int]] = {}

    def register(plan: Plan) -> None:
        tried.setdefault(plan.short_id, (plan, count(plan)))
        original(plan)

    grappler.register = register
    try:
        model = models.HandWritten("float32", "sgd")
        strategy = tf_libra.strategies.Libra(threads=(1, 2), race=False)
        step = tf_libra.optimize(strategy, max_tuning_steps=9)(tf.function(model.step))
        for number in range(14):
            step(*shard(number))
    finally:
        grappler.register = original
    held = {name: count(plan) - before for name, (plan, before) in tried.items()}
    return {"in_force": step.plan.short_id, "held": held}


def tries_and_concludes(
    tensors: Sequence[TensorSpec],
    strategy: Any,
    num_workers: int,
    *_: Any,
    active_plan: Plan | None = None,
    **__: Any,
) -> Any:
    """First one all-reduce, of which it expects what nothing can do; and then two."""
    first_plan = one_group_plan(tensors, 1, num_workers, "first")
    tried = [*measuring_plans(tensors, (1, 2), num_workers), *[first_plan] * 2]
    for plan in tried if active_plan is None else tried * 3:
        yield Trial(Phase.MEASURE, plan, traced=plan is not first_plan)
    if active_plan is None:
        return TuningResult(first_plan, race=Race((Candidate(first_plan, None, (1e-9, 1e-9)),)))
    assert active_plan.fingerprint == first_plan.fingerprint
    half = len(tensors) // 2
    groups = (TensorGroup(0, half, 1), TensorGroup(half, len(tensors), 2))
    second_plan = replace(first_plan, groups=groups, strategy="second")
    return TuningResult(second_plan, race=Race((Candidate(second_plan, None, ()),)))


@cases
def plan_that_is_left_for_another() -> Any:
    """Steps take longer than expected: plans are tried out again, in doses, and one is taken."""
    reported = []
    saved = {}
    # Two looks, a dose, a look, what is left of the experiments, and two more looks.
    num_steps = 190
    for alone in (True, False):
        model = models.HandWritten("float64", "momentum")
        step = tf.function(model.step)
        if not alone:
            options = config.resolve(
                {
                    "strategy": tf_libra.strategies.Libra(threads=(1, 2)),
                    "tuning": tf_libra.Tuning(retune_overhead=1.0),
                }
            )
            step = Optimized(step, options, tries_and_concludes)
        for number in range(num_steps):
            joint = models.batch(number, SIZE, "float64")
            step(*(joint if alone else models.part(joint, RANK, SIZE)))
            if not alone:
                plan = step.plan and step.plan.strategy
                reported.append([str(step.phase), plan, step.settled])
        who = "alone" if alone else "ours"
        saved |= {f"{who}/{k}": v for k, v in model.weights().items()}
    cases.save(**saved)
    explained = step.explain()
    step.close()
    return {"reported_plans": reported, "explained": explained}


@cases
def numbered_otherwise_on_one_rank() -> Any:
    """One rank has built another model before, so its layers have other numbers."""
    alone = models.Keras("float64", "adam")
    if RANK == LAST:
        models.Keras("float64", "adam")
    ours = models.Keras("float64", "adam")
    step = tf_libra.optimize("wfbp", max_tuning_steps=4)(tf.function(ours.step))
    for number in range(8):
        alone.step(*models.batch(number, SIZE, "float64"))
        step(*shard(number, "float64"))
    step.check_variables()
    saved = {"alone": alone, "ours": ours}
    cases.save(
        **{
            f"{who}/{i}": trainable_variable.numpy()
            for who, model in saved.items()
            for i, trainable_variable in enumerate(model.model.trainable_variables)
        }
    )
    return {"names": list(step.plan.tensor_names), "slots": len(ours.optimizer.variables)}


@cases
def named_otherwise_on_one_rank() -> Any:
    """The script names variables differently, so the ranks cannot match them."""
    model = models.HandWritten("float32", "sgd")
    if RANK == LAST:
        model.variables[1] = tf.Variable(model.variables[1], name="bias")
    tf_libra.optimize()(tf.function(model.step))(*shard())


class Repeated(models.HandWritten):
    """Takes two steps on finite inputs, else one."""

    def __init__(self) -> None:
        super().__init__("float32", "sgd")

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        all_finite = tf.reduce_all(tf.math.is_finite(inputs))
        inputs = tf.where(all_finite, inputs, tf.zeros_like(inputs))
        loss = tf.constant(0.0)
        for _ in tf.range(tf.where(all_finite, 2, 1)):
            loss = super().step(inputs, labels)
        return loss


class OverData(Repeated):
    """Takes a step for each element of a dataset that ends earlier on one rank."""

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        all_finite = tf.reduce_all(tf.math.is_finite(inputs))
        inputs = tf.where(all_finite, inputs, tf.zeros_like(inputs))
        loss = tf.constant(0.0)
        for _ in tf.data.Dataset.range(tf.where(all_finite, tf.constant(2, tf.int64), 1)):
            loss = models.HandWritten.step(self, inputs, labels)
        return loss


class InOneGraph(models.Conditional):
    """Three steps in one graph, the second of which may be skipped."""

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for turn in tf.range(3):
            loss = super().step(tf.where(turn == 1, inputs, tf.zeros_like(inputs)), labels)
        return loss


def drifts(
    make: Callable[[], Any], at: int, rank: int = LAST, num_steps: int = 1, **options: Any
) -> dict[str, Any]:
    """Trains until the inputs of one rank are NaN, and says what becomes of that step."""
    model = make()
    step = tf_libra.optimize(**{"strategy": "libra", "max_tuning_steps": 9} | options)(
        tf.function(model.step)
    )
    for number in range(at + 2):
        inputs, labels = shard(number)
        before = model.weights()
        if number == at and rank == RANK:
            inputs *= np.nan
        try:
            step.several(num_steps, inputs, labels)
        except tf.errors.FailedPreconditionError as error:
            same = [bool((v == before[name]).all()) for name, v in model.weights().items()]
            return {"at": number, "message": str(error), "same": same, "phase": str(step.phase)}
    return {"at": -1, "message": "", "same": [], "phase": str(step.phase)}


for name, make, options in (
    ("drifts_in_the_first_step", models.Conditional, {"at": 0}),
    ("drifts_while_plans_are_tried", models.Conditional, {"at": 4}),
    ("drifts_under_a_plan", models.Conditional, {"at": 3, "plan": PLAN_FILE}),
    ("drifts_on_rank_0", models.Conditional, {"at": 3, "rank": 0, "plan": PLAN_FILE}),
    ("drifts_in_a_loop", Repeated, {"at": 3, "plan": PLAN_FILE}),
    ("drifts_in_a_loop_on_rank_0", Repeated, {"at": 4, "rank": 0}),
    ("drifts_in_a_loop_over_data", OverData, {"at": 3, "plan": PLAN_FILE}),
    ("drifts_within_a_graph", InOneGraph, {"at": 2, "num_steps": 3, "plan": PLAN_FILE}),
):
    cases.add(name, lambda make=make, options=options: drifts(make, **options))


@cases
def branches_that_reduce_the_same() -> Any:
    """Each rank takes another one: what they reduce belongs together."""
    saved = {}
    for alone in (True, False):
        model = models.HandWritten("float64", "sgd")

        def train(
            inputs: tf.Tensor, labels: tf.Tensor, other: tf.Tensor, model: Any = model
        ) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                loss = model.loss(inputs, labels)
            if other > 0:
                gradients = tape.gradient(loss, model.variables)
            else:
                gradients = tape.gradient(loss, model.variables)
            model.update(gradients)
            return loss

        step = tf.function(train)
        if not alone:
            step = tf_libra.optimize("wfbp", max_tuning_steps=4)(step)
        for number in range(8):
            batch = models.batch(number, SIZE, "float64")
            step(*(batch if alone else shard(number, "float64")), tf.constant(RANK))
        who = "alone" if alone else "ours"
        saved |= {f"{who}/{k}": v for k, v in model.weights().items()}
    cases.save(**saved)
    return str(step.phase)
