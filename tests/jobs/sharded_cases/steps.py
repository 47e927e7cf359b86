"""Training in which each rank updates the parts that it owns, against whole updates."""

import dataclasses
import hashlib
from typing import Any

import keras
import models
import numpy as np
import tensorflow as tf
from forced_families import every_family_in_trials
from harness import FOLDER, RANK, SIZE

import tf_libra
from sharded_cases.common import (
    NUM_STEPS,
    OPTIMIZERS,
    PLANNED_GATHERS,
    Network,
    await_files,
    cases,
    decorated,
    different,
    inputs_of,
    not_finite,
    num_in_parts,
)
from tf_libra import config
from tf_libra.autotune import Phase, Trial, TuningResult
from tf_libra.backends import engine as engine_lib
from tf_libra.decorator import Optimized
from tf_libra.runtime import grappler
from tf_libra.specs.plan import TensorGroup
from tf_libra.specs.telemetry import gathers_among
from tf_libra.variable_sync.owned_slots import held_bytes

# Cases whose gathers go on after a call.
OVERLAPPED = ("nesterov", "averaged", "scaled", "factored", "clipped", "bfloat16")
# Cases whose plan has gathers of its own.
PLANNED = ("written", "accumulated", "float64", "lamb")
# Cases that skip a step whose gradients are not finite.
SKIPPED = ("scaled", "conditional", "nested")


def compared(name: str, optimizer: str, dtype: str = "float32") -> Any:
    """Trains with and without sharded updates."""
    ours, theirs = Network(optimizer, dtype), Network(optimizer, dtype)
    shard = "overlap" if name in OVERLAPPED else "planned" if name in PLANNED else True
    steps = decorated(ours, shard), decorated(theirs, shard=False)
    for number in range(NUM_STEPS):
        batch = inputs_of(number)
        if name in SKIPPED and number == 1:
            batch = not_finite(*batch)
        steps[0](*batch)
        if number == 0:  # cases with the same plan share its report
            graph = grappler.report(steps[0].plan).latest
        steps[1](*batch)
    in_parts = num_in_parts(ours.variables())
    held = sum(held_bytes(variable.value) for variable in ours.optimizer.variables)
    steps[0].synchronize_variables()
    values = [variable.numpy() for variable in ours.variables()]
    pairs = zip(values, theirs.variables(), strict=True)
    gathers = gathers_among(engine_lib.drain_telemetry())[-len(PLANNED_GATHERS) :]
    bits = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
    return {
        "different": different(ours, theirs),
        "error": max(float(np.max(np.abs(our - their.numpy()), initial=0)) for our, their in pairs),
        "bits": bits,
        "in_parts": in_parts,
        "held": held,
        "whole": sum(held_bytes(variable.value) for variable in ours.optimizer.variables),
        "sharded": [group.is_sharded for group in graph.groups],
        "fused": graph.num_fused_updates,
        "explained": steps[0].explain(),
        "gathers": [
            [record.num_threads, sorted(name.split()[0] for name in record.tensor_names)]
            for record in gathers
        ],
        "numbers": numbers_left(ours, theirs, steps) if name == "clipped" else [],
    }


def numbers_left(ours: Network, theirs: Network, steps: tuple[Any, Any]) -> list[list[int]]:
    """Returns how many elements of the variables are numbers after gradients that are none."""
    for step in steps:
        step(*not_finite(*inputs_of(NUM_STEPS)))
    steps[0].synchronize_variables()
    return [
        [int(np.sum(~np.isnan(variable.numpy()))) for variable in network.variables()]
        for network in (ours, theirs)
    ]


for name in OPTIMIZERS:
    cases.add(name, lambda name=name: compared(name, name))
for dtype in ("float16", "bfloat16", "float64"):
    cases.add(dtype, lambda dtype=dtype: compared(dtype, "each", dtype))


@cases
def life() -> Any:
    """Compares variables, traces another batch size, saves and restores in between."""
    ours, theirs = Network("written"), Network("written")
    step, other = decorated(ours, shard="overlap"), decorated(theirs, shard=False)
    in_parts = []
    for number in range(8):
        shard = models.SHARD + number // 4
        step(*inputs_of(number, shard))
        other(*inputs_of(number, shard))
        in_parts.append(num_in_parts(ours.variables()))
        if number == 2:
            step.check_variables()
        elif number == 5:
            step.synchronize_variables()
            saved = [variable.numpy() for variable in ours.variables()]
            for variable in ours.variables():
                variable.assign(tf.zeros_like(variable))
            for variable, value in zip(ours.variables(), saved, strict=True):
                variable.assign(value)
            in_parts.append(num_in_parts(ours.variables()))
    step.synchronize_variables()
    return {"different": different(ours, theirs), "in_parts": in_parts}


@cases
def several() -> Any:
    """Runs graphs of two steps, and of one."""
    ours, theirs = Network("conditional"), Network("conditional")
    steps, groups = [], []
    for network, shard in ((ours, "overlap"), (theirs, False)):
        train = tf.function(network.step)  # traced once: both steps have the same gradients

        def twice(inputs: Any, labels: Any, train: Any = train) -> None:
            train(inputs, labels)
            train(-inputs, labels)

        once, again = decorated(network, shard), decorated(network, shard, twice)
        once(*inputs_of(0))  # its slots are made whole for the other function
        for number in range(3):
            again.several(2, *inputs_of(number))
        steps.append(again)
        groups.append(grappler.report(again.plan).latest.groups)
    in_parts = num_in_parts(ours.variables())
    steps[0].synchronize_variables()
    return {
        "different": different(ours, theirs),
        "in_parts": in_parts,
        "sharded": [(group.copy, group.is_sharded, group.whole) for group in groups[0]],
    }


@cases
def checkpoints() -> Any:
    """Saves and restores without synchronizing variables."""
    path = str(FOLDER / f"checkpoint.{RANK}")
    ours, theirs = Network("adam"), Network("adam")
    step, other = decorated(ours, shard=True), decorated(theirs, shard=False)
    for number in range(NUM_STEPS):
        step(*inputs_of(number))
    tf.train.Checkpoint(variables=ours.variables()).write(path)
    in_parts = [num_in_parts(ours.variables())]
    tf.train.Checkpoint(variables=theirs.variables()).read(path).assert_consumed()
    after_restore = different(ours, theirs)
    for number in range(2):
        step(*inputs_of(number))
        other(*inputs_of(number))
    in_parts.append(num_in_parts(ours.variables()))
    for network in (ours, theirs):
        tf.train.Checkpoint(variables=network.variables()).read(path).assert_consumed()
    in_parts.append(num_in_parts(ours.variables()))
    step(*inputs_of(5))
    other(*inputs_of(5))
    step.synchronize_variables()
    return {"different": after_restore + different(ours, theirs), "in_parts": in_parts}


@cases
def elastic_state() -> Any:
    """Saves and restores an elastic state without synchronizing variables."""
    ours, theirs = Network("written"), Network("written")
    step, other = decorated(ours, shard="overlap"), decorated(theirs, shard=False)
    state = tf_libra.elastic.TensorFlowState(ours.variables())
    for number in range(2):
        step(*inputs_of(number))
        other(*inputs_of(number))
    state.save()
    in_parts = [num_in_parts(ours.variables())]
    theirs_state = tf_libra.elastic.TensorFlowState(theirs.variables())
    for undone in (step, other):
        undone(*inputs_of(9))
    in_parts.append(num_in_parts(ours.variables()))
    before_restore = []
    if RANK == 0:  # reads the last step when all others have restored
        await_files("restored", range(1, SIZE))
        before_restore = different(ours, theirs)
    for restored in (state, theirs_state):
        restored.restore()
    (FOLDER / f"restored.{RANK}").touch()
    in_parts.append(num_in_parts(ours.variables()))
    for number in range(2, 4):
        step(*inputs_of(number))
        other(*inputs_of(number))
    step.synchronize_variables()
    return {"different": before_restore + different(ours, theirs), "in_parts": in_parts}


@cases
def keras_model() -> Any:
    """Saves a model of Keras with its optimizer."""
    model = keras.Sequential([keras.layers.Dense(models.CLASSES, activation="softmax")])
    model.build((None, models.FEATURES))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    model.optimizer.build(model.trainable_variables)
    values = [weight.value for weight in model.trainable_variables]

    def train(inputs: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model.compute_loss(inputs, labels, model(inputs)))
        model.optimizer.apply(tape.gradient(loss, values), model.trainable_variables)

    plan = models.plan_of(values, SIZE, [0, len(values)], [1])
    step = tf_libra.optimize(plan=plan, shard_updates=True)(tf.function(train))
    for number in range(2):
        step(*inputs_of(number))
    path = FOLDER / f"model.{RANK}.keras"
    model.save(path)
    found = keras.models.load_model(path).optimizer.variables
    pairs = zip(found, model.optimizer.variables, strict=True)
    changed = [our.path for our, their in pairs if our.numpy().tobytes() != their.numpy().tobytes()]
    return changed, sum(float(np.abs(slot.numpy()).sum()) for slot in found)


@cases
def fit() -> Any:
    """Trains by Keras' fit, which saves the model on rank 0 after each epoch."""
    bits, in_parts, totals = [], [], []
    for gathers in ((TensorGroup(1, 2, 1), TensorGroup(0, 1, 1)), ()):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(models.CLASSES, name="only")])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.build((None, models.FEATURES))
        model.compile(keras.optimizers.Adam(0.01), loss)
        plan = models.plan_of(
            [trainable_variable.value for trainable_variable in model.trainable_variables],
            SIZE,
            [0, 2],
            [1],
        )
        plan = dataclasses.replace(plan, gathers=gathers)
        optimized = tf_libra.keras.optimize(model, plan=plan)
        path = FOLDER / f"fit.{len(gathers)}.keras"
        saving = [keras.callbacks.ModelCheckpoint(path)] if RANK == 0 else []
        data = [np.concatenate(parts) for parts in zip(*map(inputs_of, range(4)), strict=True)]
        # The last rank has fewer batches.
        data = [part[models.SHARD * (RANK == SIZE - 1) :] for part in data]
        arguments = {"batch_size": models.SHARD, "shuffle": False, "verbose": 0}
        model.fit(*data, epochs=2, callbacks=saving, **arguments)
        variables = [*model.trainable_variables, *model.optimizer.variables]
        bits.append([variable.numpy().tobytes().hex() for variable in variables])
        totals.append(optimized.explain())
        model.train_on_batch(*inputs_of(5))
        in_parts.append(num_in_parts(variables))
        optimized.synchronize_variables()
        if RANK == 0:
            found = keras.models.load_model(path)
            saved = [*found.trainable_variables, *found.optimizer.variables]
            assert bits[-1] == [slot.numpy().tobytes().hex() for slot in saved]
    return {"equal": bits[0] == bits[1], "in_parts": in_parts, "explained": totals}


@cases
def tuned() -> Any:
    """Tunes with whole all-reduces, and then shards the updates under DeAR's plan."""
    ours, theirs = Network("written"), Network("written")
    strategy = tf_libra.strategies.Dear(buffer_bytes=2000)
    step = tf_libra.optimize(strategy, logdir=FOLDER / "log")(tf.function(ours.step))
    other = decorated(theirs, shard=False)
    in_parts = []
    while not step.settled:
        in_parts.append(num_in_parts(ours.variables()))
        step(*inputs_of(len(in_parts)))
        other(*inputs_of(len(in_parts)))
    in_parts.append(num_in_parts(ours.variables()))
    step.synchronize_variables()
    return {
        "different": different(ours, theirs),
        "in_parts": [in_parts[0], in_parts[-1]],
        "gathers": len(step.plan.gathers),
        "explained": step.explain(),
    }


@cases
def tuned_with_gathers() -> Any:
    """Tries a plan with gathers in LIBRA's trials."""
    ours, theirs = Network("written"), Network("written")
    strategy = tf_libra.strategies.Libra(threads=(1, 2), max_groups=3)
    step = tf_libra.optimize(strategy, shard_updates="auto")(tf.function(ours.step))
    other = decorated(theirs, shard=False)
    number = 0
    while not step.settled:
        step(*inputs_of(number))
        other(*inputs_of(number))
        number += 1
    in_parts = num_in_parts(ours.variables())
    step.synchronize_variables()
    race = step.tuned.race
    return {
        "different": different(ours, theirs),
        "in_parts": in_parts,
        "gathers": len(step.plan.gathers),
        "tried": [len(candidate.plan.gathers) for candidate in race.candidates],
        "forward": [tensor.forward_seconds for tensor in step.profile.tensors],
    }


def tried(shard: bool | str) -> Any:
    """Trains under plans that a search and trials take turns with, and under the last one."""
    ours, theirs = Network("written"), Network("written")
    values = [weight.value for weight in ours.weights]
    whole = models.plan_of(values, SIZE, [0, 2, len(values)], [1, 2])
    other = models.plan_of(values, SIZE, [0, 1, 4, len(values)], [1, 2, 3])
    if shard is not True:
        other = dataclasses.replace(other, gathers=PLANNED_GATHERS)

    def tuner(*args: Any, **options: Any) -> Any:
        yield Trial(Phase.MEASURE, whole, traced=False)
        for number, plan in enumerate((whole, other, other, whole, whole, other, other)):
            yield Trial(Phase.SEARCH if number < 3 else Phase.RACE, plan, traced=False)
        return TuningResult(other)

    options = config.resolve({"strategy": "libra", "shard_updates": shard})
    step = Optimized(tf.function(ours.step), options, tuner)
    reference = decorated(theirs, shard=False)
    in_parts = []
    for number in range(10):
        step(*inputs_of(number))
        reference(*inputs_of(number))
        in_parts.append(num_in_parts(ours.variables()))
    step.synchronize_variables()
    return {"different": different(ours, theirs), "in_parts": in_parts}


for value in (True, "overlap", "auto"):
    cases.add(f"tried_{value}", lambda value=value: tried(value))


@cases
def families() -> Any:
    """Lets one rank take turns with data parallelism whose updates are sharded, and win."""
    ours, theirs = Network("adam"), Network("adam")
    values = [weight.value for weight in ours.weights]
    plan = models.plan_of(values, SIZE, [0, 1, 4, len(values)], [1, 1, 1])
    plan = dataclasses.replace(plan, gathers=(TensorGroup(2, 6, 1), TensorGroup(0, 2, 1)))

    def tuner(*args: Any, **options: Any) -> Any:
        yield Trial(Phase.RACE, plan, traced=False)
        return TuningResult(plan)

    strategy = tf_libra.strategies.Auto(threads=(1,), streams=(1,), families=("one-rank",))
    options = config.resolve({"strategy": strategy, "shard_updates": "auto"})
    step = Optimized(tf.function(ours.step), options, tuner)
    reference = decorated(theirs, shard=False)
    in_parts, plans = [], []
    with every_family_in_trials("one-rank"):
        for number in range(80):
            step(*inputs_of(number))
            reference(*inputs_of(number))
            in_parts.append(num_in_parts(ours.variables()))
            plans.append(type(step.plan).__name__)
            if step.settled and plans[-10:] == ["OneRankPlan"] * 10:
                break
    step.synchronize_variables()
    pairs = zip(ours.variables(), theirs.variables(), strict=True)
    error = max(float(np.max(np.abs(our.numpy() - their.numpy()))) for our, their in pairs)
    return {"error": error, "in_parts": in_parts, "plans": plans, "explained": step.explain()}
