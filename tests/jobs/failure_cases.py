"""Failures on two workers that must be reported: `failure_cases.py PLAN.json`."""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, Cases, restart_engine
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context as tf_context

import tf_libra
import tf_libra.elastic
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
from tf_libra.capture import gradient_interception
from tf_libra.decorator import Optimized
from tf_libra.internal import native
from tf_libra.runtime import grappler, rendezvous
from tf_libra.specs.plan import Plan, TensorGroup

cases = Cases()
PLAN_FILE = sys.argv[1]
LAST = SIZE - 1


def shard(number: int = 0, dtype: str = "float32") -> tuple[Any, Any]:
    return models.part(models.batch(number, SIZE, dtype), RANK, SIZE)


def one_step(
    make: Callable[[], Any] = lambda: models.HandWritten("float32", "sgd"), **o: Any
) -> Any:
    """A fresh model's first step."""
    model = make()
    step = tf_libra.optimize(**o)(tf.function(model.step))
    step(*shard())
    return step


@cases
def before_hvd_init() -> Any:
    """Runs first: Horovod is initialized by the next case."""
    try:
        one_step()
    finally:
        hvd.init()


# Steps that cannot be right.


@cases
def no_gradients() -> Any:
    @tf_libra.optimize("wfbp")
    @tf.function
    def forgetful_step(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(inputs)

    forgetful_step(*shard())


@cases
def none_gradient() -> Any:
    class Unused(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            self.unused = tf.Variable(np.zeros(3, "float32"), name="unused")

        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = self.loss(inputs, labels)
            tape.gradient(loss, [*self.variables, self.unused])
            return loss

    one_step(Unused)


@cases
def jit_compile() -> Any:
    @tf_libra.optimize("wfbp")
    @tf.function(jit_compile=True)
    def compiled_step(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return inputs

    compiled_step(*shard())


@cases
def jit_compile_inside() -> Any:
    class Inside(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            self.compiled = tf.function(super().step, jit_compile=True)

        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            return self.compiled(inputs, labels)

    one_step(Inside)


@cases
def jit_compile_of_the_loss() -> Any:
    """Only forward and its gradient are compiled, not the all-reduce: allowed."""

    class Loss(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            self.compiled = tf.function(super().loss, jit_compile=True)

        def loss(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            return self.compiled(inputs, labels)

    model = Loss()
    step = tf_libra.optimize(plan=PLAN_FILE)(tf.function(model.step))
    for number in range(3):
        step(*shard(number))
    cases.save(**model.weights())


@cases
def called_inside_of_a_function() -> Any:
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(plan=PLAN_FILE)(tf.function(model.step))

    @tf.function
    def outer(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return step(inputs, labels)

    outer(*shard())


@cases
def raises_in_the_step_on_one_rank() -> Any:
    """The user's own code raises while it is traced, on one rank."""

    class Broken(models.HandWritten):
        def loss(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            if RANK == LAST:
                raise RuntimeError("the data set is empty")
            return super().loss(inputs, labels)

    one_step(lambda: Broken("float32", "sgd"))


@cases
def raises_a_long_text_in_the_step_on_one_rank() -> Any:
    """More than is sent, of characters of 2 bytes, at an odd place; and a byte that is no text."""

    class Broken(models.HandWritten):
        before = ""

        def loss(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            if RANK == LAST:
                raise RuntimeError(f"m\udce4 {self.before}{'ä' * 4000}")
            return super().loss(inputs, labels)

    class Odd(Broken):
        before = "x"

    errors = []
    for kind in (Broken, Odd):
        try:
            one_step(partial(kind, "float32", "sgd"))
        except Exception as error:
            errors.append([type(error).__name__, str(error)])
        restart_engine()
    return errors


@cases
def raises_between_steps() -> Any:
    """One rank's input is wrong in a later step; the others learn why. Then all call again."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(plan=PLAN_FILE)(tf.function(model.step))
    errors = []
    for number in range(6):
        inputs, labels = shard(number)
        if RANK == LAST and number == 3:
            inputs = inputs[:, :5]
        try:
            step(inputs, labels)
        except Exception as error:
            errors.append([number, type(error).__name__, str(error)])
    return errors


@cases
def elsewhere_between_steps() -> Any:
    """One rank checks variables or commits, and the other takes a step: in tuning, under a plan."""
    found = {}
    for what in ("check_variables", "commit"):
        for rank in (0, LAST):
            for phase, tuning_steps in (("tuning", 40), ("plan", 3)):
                model = models.HandWritten("float32", "sgd")
                step = tf_libra.optimize(
                    tf_libra.strategies.Libra(threads=(1, 2)),
                    max_tuning_steps=tuning_steps,
                    timeout_seconds=60.0,
                )(tf.function(model.step))
                state = tf_libra.elastic.TensorFlowState(model.variables)
                for number in range(6):
                    step(*shard(number))
                calls = {"check_variables": step.check_variables, "commit": state.commit}
                try:
                    step(*shard()) if rank != RANK else calls[what]()
                except Exception as error:
                    found[f"{what} {rank} {phase}"] = [type(error).__name__, str(error)]
                restart_engine()
    return found


# Ranks that disagree.


def other(**fields: Any) -> Plan:
    return replace(Plan.from_json(Path(PLAN_FILE).read_text()), **fields)


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """On the last rank only."""
    original = getattr(owner, name)
    if RANK == LAST:
        setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@cases
def differ_in_shape() -> Any:
    class Wider(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            if RANK == LAST:
                shape = (models.FEATURES, 17)
                self.variables[0] = tf.Variable(np.zeros(shape, "float32"), name="w0")
                self.variables[1] = tf.Variable(np.zeros(17, "float32"), name="b0")
                self.variables[2] = tf.Variable(np.zeros((17, 9), "float32"), name="w1")

    one_step(Wider)


@cases
def differ_in_dtype() -> Any:
    dtype = "float64" if RANK == LAST else "float32"
    model = models.HandWritten(dtype, "sgd")
    tf_libra.optimize()(tf.function(model.step))(*shard(0, dtype))


@cases
def differ_in_order() -> Any:
    original = gradient_interception.backward_order
    with patched(gradient_interception, "backward_order", lambda *args: original(*args)[::-1]):
        one_step()


@cases
def differ_in_number() -> Any:
    class Frozen(models.HandWritten):
        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = self.loss(inputs, labels)
            # w0, the last in backward order, is frozen on one rank.
            tape.gradient(loss, self.variables[1:] if RANK == LAST else self.variables)
            return loss

    one_step(lambda: Frozen("float32", "sgd"))


@cases
def differ_in_version_of_tensorflow() -> Any:
    with patched(tf, "__version__", "2.99.0"):
        one_step()


@cases
def differ_in_version_of_tf_libra() -> Any:
    with patched(rendezvous, "package_version", lambda: "99.0"):
        one_step()


@cases
def differ_in_plan() -> Any:
    given = Plan.from_json(Path(PLAN_FILE).read_text())
    if RANK == LAST:
        groups = (replace(given.groups[0], num_threads=2), *given.groups[1:])
        given = replace(given, groups=groups)
    one_step(plan=given)


@cases
def differ_in_threads() -> Any:
    """The engines have different numbers of lanes, before anything can be compared over them."""
    threads = (1, 2, 4) if RANK == LAST else (1, 2)
    one_step(strategy=tf_libra.strategies.Libra(threads=threads))


@cases
def differ_in_strategy() -> Any:
    one_step(strategy="wfbp" if RANK == LAST else "libra")


@cases
def differ_in_having_a_plan() -> Any:
    one_step(plan=PLAN_FILE if RANK == LAST else None)


@cases
def differ_in_broadcast_variables() -> Any:
    one_step(broadcast_variables=RANK == LAST)


class Different(models.HandWritten):
    """On the last rank, `w1` starts from other values."""

    def __init__(self, dtype: str = "float32", optimizer: str = "adam") -> None:
        super().__init__(dtype, optimizer)
        if RANK == LAST:
            self.variables[2].assign_add(0.25 * tf.ones_like(self.variables[2]))


@cases
def differ_in_local_variables() -> Any:
    one_step(local_variables=["data"] if RANK == LAST else ())


@cases
def differ_in_grappler() -> Any:
    """One rank would fuse, the other would not."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": RANK == LAST})
    try:
        one_step()
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@cases
def differ_in_a_variable() -> Any:
    one_step(Different, broadcast_variables=False)


@cases
def broadcast_variables() -> Any:
    """Rank 0's values everywhere, whatever the variables are called."""
    random = np.random.default_rng(RANK)
    model = Different()
    for variable in [*model.variables, *model._first, *model._second]:
        variable.assign_add(random.normal(size=variable.shape).astype("float32") ** 2)
    started = {name: value.copy() for name, value in model.weights().items()}
    step = tf_libra.optimize(plan=PLAN_FILE, broadcast_variables=True)(tf.function(model.step))
    for number in range(3):
        step(*shard(number))
    alone = Different()
    alone_random = np.random.default_rng(0)
    for variable, first in zip(
        [*alone.variables, *alone._first, *alone._second],
        [*models.HandWritten("float32", "adam").variables, *alone._first, *alone._second],
        strict=True,
    ):
        added = alone_random.normal(size=variable.shape).astype("float32") ** 2
        variable.assign(first + added)
    for number in range(3):
        alone.step(*models.batch(number, SIZE, "float32"))
    cases.save(
        **{f"ours/{k}": v for k, v in model.weights().items()},
        **{f"alone/{k}": v for k, v in alone.weights().items()},
        **{f"started/{k}": v for k, v in started.items()},
    )


@cases
def differ_in_a_counter() -> Any:
    class Counting(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            self.counter = tf.Variable(RANK, trainable=False, name="counter")

        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            self.counter.assign_add(1)
            return super().step(inputs, labels)

    one_step(Counting, broadcast_variables=False)


@cases
def random_generator_of_each_rank() -> Any:
    """The state of a generator may differ: each rank draws noise of its own."""

    class Noisy(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            self.generator = tf.random.Generator.from_seed(100 + RANK)

        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            noise = self.generator.normal(tf.shape(inputs), stddev=0.01)
            return super().step(inputs + noise, labels)

    return str(one_step(Noisy, plan=PLAN_FILE).phase)


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
        fields = ("short_id", "fingerprint", "tensor_names", "num_bytes", "after_backward")
        of_plan = {name: getattr(plan, name) for name in fields}
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
    one = one_group_plan(tensors, 1, num_workers, "first")
    tried = [*measuring_plans(tensors, (1, 2), num_workers), *[one] * 2]
    for plan in tried if active_plan is None else tried * 3:
        yield Trial(Phase.MEASURE, plan, traced=plan is not one)
    if active_plan is None:
        return TuningResult(one, race=Race((Candidate(one, None, (1e-9, 1e-9)),)))
    assert active_plan.fingerprint == one.fingerprint
    half = len(tensors) // 2
    groups = (TensorGroup(0, half, 1), TensorGroup(half, len(tensors), 2))
    two = replace(one, groups=groups, strategy="second")
    return TuningResult(two, race=Race((Candidate(two, None, ()),)))


@cases
def plan_that_is_left_for_another() -> Any:
    """Steps take longer than expected: plans are tried out again, in doses, and one is taken."""
    told = []
    saved = {}
    # Two looks, a dose, a look, what is left of the experiments, and two more looks.
    num_steps = 190
    for alone in (True, False):
        model = models.HandWritten("float64", "adam")
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
                told.append([str(step.phase), plan, step.settled])
        who = "alone" if alone else "ours"
        saved |= {f"{who}/{k}": v for k, v in model.weights().items()}
    cases.save(**saved)
    explained = step.explain()
    step.close()
    return {"told": told, "explained": explained}


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
            f"{who}/{i}": one.numpy()
            for who, model in saved.items()
            for i, one in enumerate(model.model.trainable_variables)
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


# Conditions that differ between the ranks.


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
    step = tf_libra.optimize(**{"max_tuning_steps": 9} | options)(tf.function(model.step))
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


# Surroundings.


@cases
def grappler_switched_off() -> Any:
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        saved = {}
        for alone in (True, False):
            model = models.HandWritten("float64", "sgd")
            step = tf.function(model.step)
            if not alone:
                step = tf_libra.optimize(
                    tf_libra.strategies.Libra(threads=(1, 2)), max_tuning_steps=9
                )(step)
            for number in range(12):
                joint = models.batch(number, SIZE, "float64")
                step(*(joint if alone else models.part(joint, RANK, SIZE)))
                if not alone and number == 0:
                    first_phase = str(step.phase)
            who = "alone" if alone else "ours"
            saved |= {f"{who}/{k}": v for k, v in model.weights().items()}
        cases.save(**saved)
        return {"phase": first_phase, "plan": step.plan}
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@cases
def profiler_session_of_the_user() -> Any:
    """A session is open during all of tuning; it must end as the user wants it to."""
    folder = FOLDER / f"user-profile.{RANK}"
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(tf_libra.strategies.Libra(threads=(1, 2)), max_tuning_steps=9)(
        tf.function(model.step)
    )
    step(*shard())
    tf.profiler.experimental.start(str(folder))
    for number in range(1, 14):
        step(*shard(number))
    tf.profiler.experimental.stop()
    return {
        "phase": str(step.phase),
        "traces": len(list(folder.rglob("*.xplane.pb"))),
        "notes": list(step.plan.notes),
    }


@cases
def profiles_of_the_user_that_end() -> Any:
    """Profiles by hand and graphs that are collected: tuning goes on after them."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(tf_libra.strategies.Libra(threads=(1, 2)), max_tuning_steps=40)(
        tf.function(model.step)
    )
    folder = FOLDER / f"user-profiles.{RANK}"
    phases = []
    for number in range(60):
        if number == 0:
            tf.summary.trace_on(graph=True, profiler=False)
        if number in (3, 9):
            tf.profiler.experimental.start(str(folder / str(number)))
        step(*shard(number))
        phases.append(str(step.phase))
        if number == 1:
            tf.summary.trace_off()
        if number in (5, 13):
            tf.profiler.experimental.stop()
    return {
        "phases": phases,
        "traces": len(list(folder.rglob("*.xplane.pb"))),
        "profile": None if RANK or step.profile is None else len(step.profile.tensors),
        "notes": list(step.plan.notes),
    }


@cases
def short_budget() -> Any:
    """Five steps are not enough to measure everything."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize("libra", max_tuning_steps=5)(tf.function(model.step))
    phases = []
    for number in range(7):
        step(*shard(number))
        phases.append(str(step.phase))
    return {"phases": phases, "notes": list(step.plan.notes), "explained": step.explain()}


@cases
def no_seconds_at_all() -> Any:
    """The budget of time is over before the first step."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize("libra", tuning=tf_libra.Tuning(max_seconds=1e-6))(
        tf.function(model.step)
    )
    step(*shard())
    step(*shard(1))
    return {"phase": str(step.phase), "notes": list(step.plan.notes)}


def hand_written() -> Any:
    return models.HandWritten("float32", "sgd")


def next_job(
    num_steps: int, make: Callable[[], Any] = hand_written, dtype: str = "float32", **o: Any
) -> tuple[list[str], Any]:
    """Trains under a new engine, as the next job would, and at least until a plan is active.

    Returns:
        The phases of the first `num_steps` steps, and the optimized step.
    """
    restart_engine()
    model = make()
    strategy = tf_libra.strategies.Libra(threads=(1, 2))
    unlimited = tf_libra.Tuning(max_seconds=1e6)
    step = tf_libra.optimize(strategy, tuning=unlimited, **o)(tf.function(model.step))
    phases: list[str] = []
    for number in range(num_steps):
        step(*shard(number, dtype))
        phases.append(str(step.phase))
    return phases, step


def finish(step: Any) -> None:
    """Trains until a plan is active."""
    for number in range(200):
        if str(step.phase) == "run":
            return
        step(*shard(number))


@cases
def cache_and_log_folders() -> Any:
    kept, logs = FOLDER / f"cache.{RANK}", FOLDER / f"log.{RANK}"
    result: dict[str, Any] = {}

    phases, step = next_job(8, cache_dir=kept, max_tuning_steps=7)
    result["cut short"] = {"phases": phases, "kept": len(list(kept.glob("*")))}

    phases, step = next_job(1, cache_dir=kept, logdir=logs)
    finish(step)
    result["first"] = {
        "phases": phases,
        "plan": step.plan.to_json(),
        "profile": step.profile.to_json(),
        "cost_model": step.cost_model.to_json(),
        "tuned": step.tuned and step.tuned.to_json(),
    }
    result["kept"] = sorted(path.name for path in kept.glob("*"))
    result["logged"] = {path.name: path.read_text() for path in logs.glob("*.json")}

    phases, step = next_job(2, cache_dir=kept)
    result["second"] = {
        "phases": phases,
        "plan": step.plan and step.plan.to_json(),
        "profile": step.profile and step.profile.to_json(),
        "cost_model": step.cost_model and step.cost_model.to_json(),
        "tuned": step.tuned and step.tuned.to_json(),
        "explained": step.explain(),
    }

    def first_phase(**options: Any) -> str:
        phases, _ = next_job(1, cache_dir=kept, **options)
        return phases[0]

    def float64() -> Any:
        return models.HandWritten("float64", "sgd")

    result["another model"] = first_phase(make=float64, dtype="float64")
    for number, text in enumerate(["{", "[]", '{"plan": "{}"}', "[" * 100_000, '{"plan": 3}']):
        for path in kept.glob("*"):
            path.write_text(text)
        result[f"corrupt {number}"] = first_phase()
    # Kept plans of something else under the right name.
    given = other()
    foreign = {
        "wrong plan": models.plan_of(models.MixedNames().variables, SIZE, [0, 2], [1]),
        "plan for 3 workers": other(num_workers=3),
        "too many threads": other(
            groups=(replace(given.groups[0], num_threads=9), *given.groups[1:])
        ),
    }
    for name, plan in foreign.items():
        for path in kept.glob("*"):
            path.write_text(json.dumps({"plan": plan.to_json()}))
        result[name] = first_phase()
    return result


@cases
def folders_that_cannot_be_written() -> Any:
    """The plan is active all the same: a full disk must not end the training."""
    blocked = FOLDER / f"blocked.{RANK}"
    blocked.write_text("a file where a folder should be")
    _, step = next_job(1, cache_dir=blocked / "cache", logdir=blocked / "log")
    finish(step)
    step(*shard())
    return str(step.phase)


@cases
def log_folder_of_a_given_plan() -> Any:
    logs = FOLDER / f"given.{RANK}"
    one_step(plan=PLAN_FILE, logdir=logs)
    return {path.name: path.read_text() for path in logs.glob("*.json")}


# Plans that do not fit.


@cases
def plan_for_another_world_size() -> Any:
    one_step(plan=other(num_workers=3))


@cases
def plan_of_another_model() -> Any:
    given = other(tensor_names=("b2", "w2", "b1", "other", "b0", "w0"))
    one_step(plan=given)


@cases
def plan_of_a_model_of_another_size() -> Any:
    given = other()
    one_step(plan=replace(given, num_bytes=(*given.num_bytes[:3], 4, *given.num_bytes[4:])))


@cases
def plan_of_another_dtype() -> Any:
    """Same sizes in bytes, but of other elements."""
    one_step(plan=other(dtypes=("int32",) * 6))


@cases
def plan_of_fewer_tensors() -> Any:
    given = other()
    one_step(
        plan=replace(
            given,
            groups=given.groups[:2],
            tensor_names=given.tensor_names[:4],
            num_bytes=given.num_bytes[:4],
            dtypes=given.dtypes[:4],
        )
    )


@cases
def differ_in_a_variable_that_is_to_be_broadcast() -> Any:
    """A variable of another shape cannot be copied; it is not among the gradients."""

    class Averaging(models.HandWritten):
        def __init__(self) -> None:
            super().__init__("float32", "sgd")
            self.average = tf.Variable(tf.zeros([4 + RANK]), trainable=False, name="average")

        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            self.average.assign(0.9 * self.average)
            return super().step(inputs, labels)

    one_step(Averaging, broadcast_variables=True)


if __name__ == "__main__":
    logging.getLogger("tf_libra").setLevel(logging.INFO)
    cases.run()
