"""Training in which each rank updates the parts that it owns, against whole updates."""

import os
import signal
from collections.abc import Callable
from typing import Any

import harness
import horovod.tensorflow as hvd
import keras
import models
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, Cases

import tf_libra
from tf_libra.runtime import grappler
from tf_libra.variable_sync.owned_slots import held_bytes

cases = Cases()
# No size is a multiple of what ranks own, and some are too small for all ranks to own a part.
SHAPES = [(models.FEATURES, 37), (37,), (37, 11), (11,), (11, models.CLASSES), (models.CLASSES,)]
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "nesterov": lambda: keras.optimizers.SGD(
        0.1, momentum=0.9, nesterov=True, weight_decay=0.01, clipvalue=0.01, loss_scale_factor=4.0
    ),
    "adam": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "averaged": lambda: keras.optimizers.SGD(0.1, use_ema=True),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.001),
    "clipped": lambda: keras.optimizers.Adam(0.01, clipnorm=0.1),
}
NUM_STEPS = 4


class Momentum:
    """An optimizer as a script may write it."""

    def build(self, weights: list[keras.Variable]) -> None:
        self.variables = [
            keras.Variable(tf.zeros(weight.shape), trainable=False, name=f"momentum{i}")
            for i, weight in enumerate(weights)
        ]

    def apply(self, gradients: list[tf.Tensor], weights: list[keras.Variable]) -> None:
        for gradient, weight, slot in zip(gradients, weights, self.variables, strict=True):
            slot.value.assign(0.9 * slot.value)
            slot.value.assign_add(gradient)
            weight.value.assign_sub(0.1 * slot.value)


OPTIMIZERS["written"] = Momentum


class Network:
    """Three dense layers, and an optimizer of Keras."""

    def __init__(self, optimizer: str, dtype: str = "float32") -> None:
        random = np.random.default_rng(7)
        self.weights = [
            keras.Variable(0.2 * random.normal(size=shape), dtype=dtype, name=f"v{i}")
            for i, shape in enumerate(SHAPES)
        ]
        self.optimizer = OPTIMIZERS[optimizer]()
        self.optimizer.build(self.weights)

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        values = [weight.value for weight in self.weights]
        with tf.GradientTape() as tape:
            hidden = tf.cast(inputs, values[0].dtype)
            for layer in range(0, len(values), 2):
                hidden = tf.tanh(hidden @ values[layer] + values[layer + 1])
            loss = models.cross_entropy(labels, tf.cast(hidden, tf.float32))
        self.optimizer.apply(tape.gradient(loss, values), self.weights)
        return loss

    def variables(self) -> list[tf.Variable]:
        return [one.value for one in (*self.weights, *self.optimizer.variables)]


def inputs_of(number: int, shard: int = models.SHARD) -> tuple[Any, Any]:
    return models.part(models.batch(number, SIZE, "float32", shard), RANK, SIZE)


def decorated(network: Network, shard: bool, function: Callable[..., Any] | None = None) -> Any:
    values = [weight.value for weight in network.weights]
    plan = models.plan_of(values, SIZE, [0, 1, 4, len(values)], [1, 2, 3])
    return tf_libra.optimize(plan=plan, shard_updates=shard)(
        tf.function(network.step if function is None else function)
    )


def num_unreadable(network: Network) -> int:
    """Returns the number of variables that hold owned parts alone."""
    count = 0
    for variable in network.variables():
        try:
            variable.numpy()
        except tf.errors.InvalidArgumentError:
            count += 1
    return count


def different(ours: Network, theirs: Network) -> list[str]:
    """Returns the variables that have other bits."""
    pairs = zip(ours.variables(), theirs.variables(), strict=True)
    return [one.name for one, two in pairs if one.numpy().tobytes() != two.numpy().tobytes()]


def compared(optimizer: str, dtype: str = "float32") -> Any:
    """Trains with and without sharded updates."""
    ours, theirs = Network(optimizer, dtype), Network(optimizer, dtype)
    steps = decorated(ours, shard=True), decorated(theirs, shard=False)
    for number in range(NUM_STEPS):
        for step in steps:
            step(*inputs_of(number))
    unreadable = num_unreadable(ours)
    held = sum(held_bytes(one.value) for one in ours.optimizer.variables)
    steps[0].synchronize_variables()
    return {
        "different": different(ours, theirs),
        "unreadable": unreadable,
        "held": held,
        "whole": sum(held_bytes(one.value) for one in ours.optimizer.variables),
        "sharded": [group.is_sharded for group in grappler.report(steps[0].plan).graphs[0].groups],
        "explained": steps[0].explain(),
    }


for name in OPTIMIZERS:
    cases.add(name, lambda name=name: compared(name))
for dtype in ("float16", "bfloat16", "float64"):
    cases.add(dtype, lambda dtype=dtype: compared("adam", dtype))


@cases
def life() -> Any:
    """Compares variables, traces another batch size, saves and restores in between."""
    ours, theirs = Network("adam"), Network("adam")
    step, other = decorated(ours, shard=True), decorated(theirs, shard=False)
    unreadable = []
    for number in range(8):
        shard = models.SHARD + number // 4
        step(*inputs_of(number, shard))
        other(*inputs_of(number, shard))
        unreadable.append(num_unreadable(ours))
        if number == 2:
            step.check_variables()
        elif number == 5:
            step.synchronize_variables()
            saved = [variable.numpy() for variable in ours.variables()]
            for variable in ours.variables():
                variable.assign(tf.zeros_like(variable))
            for variable, value in zip(ours.variables(), saved, strict=True):
                variable.assign(value)
            unreadable.append(num_unreadable(ours))
    step.synchronize_variables()
    return {"different": different(ours, theirs), "unreadable": unreadable}


@cases
def several() -> Any:
    """Runs graphs of two steps, and of one."""
    ours, theirs = Network("nesterov"), Network("nesterov")
    steps, groups = [], []
    for network, shard in ((ours, True), (theirs, False)):
        train = tf.function(network.step)  # traced once: both steps have the same gradients

        def twice(inputs: Any, labels: Any, train: Any = train) -> None:
            train(inputs, labels)
            train(-inputs, labels)

        one, two = decorated(network, shard), decorated(network, shard, twice)
        one(*inputs_of(0))  # its slots are made whole for the other function
        for number in range(3):
            two.several(2, *inputs_of(number))
        steps.append(two)
        groups.append(grappler.report(two.plan).latest.groups)
    unreadable = num_unreadable(ours)
    steps[0].synchronize_variables()
    return {
        "different": different(ours, theirs),
        "unreadable": unreadable,
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
    unreadable = [num_unreadable(ours)]
    tf.train.Checkpoint(variables=theirs.variables()).read(path).assert_consumed()
    after_restore = different(ours, theirs)
    for number in range(2):
        step(*inputs_of(number))
        other(*inputs_of(number))
    unreadable.append(num_unreadable(ours))
    for network in (ours, theirs):
        tf.train.Checkpoint(variables=network.variables()).read(path).assert_consumed()
    unreadable.append(num_unreadable(ours))
    step(*inputs_of(5))
    other(*inputs_of(5))
    step.synchronize_variables()
    return {"different": after_restore + different(ours, theirs), "unreadable": unreadable}


@cases
def elastic_state() -> Any:
    """Saves and restores an elastic state without synchronizing variables."""
    ours, theirs = Network("adam"), Network("adam")
    step, other = decorated(ours, shard=True), decorated(theirs, shard=False)
    state = tf_libra.elastic.TensorFlowState(ours.variables())
    for number in range(2):
        step(*inputs_of(number))
        other(*inputs_of(number))
    state.save()
    unreadable = [num_unreadable(ours)]
    step(*inputs_of(9))  # is undone
    unreadable.append(num_unreadable(ours))
    state.restore()
    unreadable.append(num_unreadable(ours))
    for number in range(2, 4):
        step(*inputs_of(number))
        other(*inputs_of(number))
    step.synchronize_variables()
    return {"different": different(ours, theirs), "unreadable": unreadable}


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
    return [one.path for one, two in pairs if one.numpy().tobytes() != two.numpy().tobytes()], sum(
        float(np.abs(one.numpy()).sum()) for one in found
    )


@cases
def fit() -> Any:
    """Trains by Keras' fit, which saves the model on rank 0 after each epoch."""
    bits, unreadable, totals = [], [], []
    for shard in (True, False):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(models.CLASSES, name="only")])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.build((None, models.FEATURES))
        model.compile(keras.optimizers.Adam(0.01), loss)
        plan = models.plan_of([one.value for one in model.trainable_variables], SIZE, [0, 2], [1])
        optimized = tf_libra.keras.optimize(model, plan=plan, shard_updates=shard)
        path = FOLDER / f"fit.{shard}.keras"
        saving = [keras.callbacks.ModelCheckpoint(path)] if RANK == 0 else []
        data = [np.concatenate(parts) for parts in zip(*map(inputs_of, range(4)), strict=True)]
        # The last rank has fewer batches.
        data = [part[models.SHARD * (RANK == SIZE - 1) :] for part in data]
        arguments = {"batch_size": models.SHARD, "shuffle": False, "verbose": 0}
        model.fit(*data, epochs=2, callbacks=saving, **arguments)
        variables = [*model.trainable_variables, *model.optimizer.variables]
        bits.append([one.numpy().tobytes().hex() for one in variables])
        totals.append(optimized.explain())
        unreadable.append(0)
        model.train_on_batch(*inputs_of(5))
        for one in variables:
            try:
                one.numpy()
            except tf.errors.InvalidArgumentError:
                unreadable[-1] += 1
        optimized.synchronize_variables()
        if RANK == 0:
            found = keras.models.load_model(path)
            saved = [*found.trainable_variables, *found.optimizer.variables]
            assert bits[-1] == [one.numpy().tobytes().hex() for one in saved]
    return {"equal": bits[0] == bits[1], "unreadable": unreadable, "explained": totals}


@cases
def saved_by_one_rank() -> None:
    """Saves slots on rank 0, while the other ranks go on."""
    network = Network("adam")
    step = decorated(network, shard=True)
    for number in range(2):
        step(*inputs_of(number))
    if RANK == 0:
        tf.train.Checkpoint(variables=network.variables()).write(str(FOLDER / "alone"))
    step(*inputs_of(2))


def killed() -> None:
    """Kills rank 1 when it has updated its parts of slots, before weights are gathered."""
    network = Network("written")

    def die() -> None:
        if RANK == 1 and number == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def apply(gradients: list[tf.Tensor], weights: list[keras.Variable]) -> None:
        slots = [slot.value for slot in network.optimizer.variables]
        updated = [slot.assign_add(one) for slot, one in zip(slots, gradients, strict=True)]
        with tf.control_dependencies([one.op for one in updated]):
            tf.py_function(die, [], [])
        for weight, slot in zip(weights, slots, strict=True):
            weight.value.assign_sub(0.1 * slot)

    network.optimizer.apply = apply
    step = decorated(network, shard=True)
    for number in range(NUM_STEPS):
        step(*inputs_of(number))
        sharded = [group.is_sharded for group in grappler.report(step.plan).latest.groups]
        harness.write_json("sharded", sharded)


if os.environ.get("TF_LIBRA_JOB_CASES") == "killed":  # ends the job
    cases.add("killed", killed)


@cases
def tuned() -> Any:
    """Tunes with whole all-reduces, and then shards the updates under the fastest plan."""
    ours, theirs = Network("adam"), Network("adam")
    step = tf_libra.optimize("mg-wfbp", shard_updates=True, logdir=FOLDER / "log")(
        tf.function(ours.step)
    )
    other = decorated(theirs, shard=False)
    unreadable = []
    while not step.settled:
        unreadable.append(num_unreadable(ours))
        step(*inputs_of(len(unreadable)))
        other(*inputs_of(len(unreadable)))
    unreadable.append(num_unreadable(ours))
    step.synchronize_variables()
    return {"different": different(ours, theirs), "unreadable": [unreadable[0], unreadable[-1]]}


if __name__ == "__main__":
    hvd.init()
    cases.run()
