"""`model.fit` while one rank trains for all, or ranks train in stages, against one process."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import horovod.tensorflow as hvd
import keras
import models
import numpy as np
import tensorflow as tf
from forced_families import FIRST, every_family_in_trials
from harness import FOLDER, RANK, SIZE, Cases
from keras_models import SHARD, References, compiled, plain_model
from keras_models import STEPS as BATCHES
from keras_models import data as shares

import tf_libra.keras
from tf_libra.runtime import family_trials
from tf_libra.runtime.family_choice import FamilyWatch
from tf_libra.strategies import Auto, DeepPool, OneRank, Spp

SHARE, STEPS, EPOCHS = 4, 4, 2
cases, references = Cases(), References()
FAMILIES = {
    "one-rank": OneRank(rank=1, results="own"),
    "spp": Spp(num_microbatches=2, num_stages=2, results="own"),
    "deeppool": DeepPool(max_amplification=1.5, results="own"),
}


def dense(x: Any, **options: Any) -> Any:
    x = keras.layers.Dense(16, activation="tanh", name="first", **options)(x)
    return keras.layers.Dense(9, activation="tanh", name="second")(x)


class Counting(keras.layers.Layer):
    """A layer with a metric of its own."""

    def __init__(self) -> None:
        super().__init__(name="counting")
        self.greatest = keras.metrics.Sum(name="greatest")

    def call(self, x: Any) -> Any:
        self.greatest.update_state(tf.reduce_max(x, axis=-1))
        return x


class OwnStep(keras.Model):
    """A training step of its own, with metrics."""

    def train_step(self, data: Any) -> Any:
        inputs, labels = data
        with tf.GradientTape() as tape:
            outputs = self(inputs, training=True)
            loss = self.compute_loss(inputs, labels, outputs)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        clipped, norm = tf.clip_by_global_norm(gradients, 4.0)
        self.optimizer.apply_gradients(zip(clipped, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(labels, outputs)
        return {metric.name: metric.result() for metric in self.metrics} | {"norm": norm}


def two_ends() -> Any:
    """Two inputs, two outputs with losses and metrics, a layer with a metric, a regularized weight.

    Some metrics are no means over examples. Horovod's optimizer wraps Adam.
    """
    left, right = keras.Input([models.FEATURES], name="left"), keras.Input([3], name="right")
    x = dense(keras.layers.Concatenate()([left, right]), kernel_regularizer="l2")
    x = Counting()(x)
    kind = keras.layers.Dense(models.CLASSES, name="kind")(x)
    positive = keras.layers.Dense(1, activation="sigmoid", name="positive")(x)
    model = keras.Model([left, right], [kind, positive], name="two")
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
        [entropy, "binary_crossentropy"],
        metrics=[
            ["accuracy"],
            [
                keras.metrics.RootMeanSquaredError(),
                keras.metrics.Precision(),
                keras.metrics.AUC(num_thresholds=20, name="area"),
            ],
        ],
        weighted_metrics=[["accuracy"], ["mae"]],
    )
    return model


def own_step() -> Any:
    """A training step of its own, whose loss is scaled."""
    inputs = keras.Input([models.FEATURES])
    outputs = keras.layers.Dense(1, activation="sigmoid", name="third")(dense(inputs))
    model = OwnStep(inputs, outputs, name="own")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.3, momentum=0.9), 8.0)
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    return model


MODELS = {make.__name__: make for make in (two_ends, own_step)}


def arrays(model: Any, alone: bool, last: int = SHARE) -> tuple[Any, ...]:
    """Returns inputs, labels and, for two outputs, weights of examples."""
    random = np.random.default_rng(1)
    sizes = [SHARE] * (STEPS - 1) + [last]
    count = SIZE * sum(sizes)
    features = random.normal(size=[count, models.FEATURES]).astype("float32")
    right = random.normal(size=[count, 3]).astype("float32")
    kinds = random.integers(0, models.CLASSES, [count])
    sums = features.sum(axis=1, keepdims=True)
    weights = random.uniform(0.5, 2.0, [2, count]).astype("float32")
    chosen, start = [], 0
    for size in sizes:
        first = start if alone else start + RANK * size
        chosen += range(first, first + (SIZE * size if alone else size))
        start += SIZE * size
    positive = (sums > 0).astype("float32")
    if model.name == "two":
        given = (features, right), (kinds, positive), (weights[0], weights[1])
    else:
        given = features, positive
    return keras.tree.map_structure(lambda array: array[chosen], tuple(given))


def data(model: Any, alone: bool, last: int = SHARE) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(arrays(model, alone, last))
    return dataset.batch(SIZE * SHARE if alone else SHARE)


def weights(model: Any) -> list[Any]:
    every = [*model.trainable_variables, *model.optimizer._variables]  # Horovod hides `variables`
    return [np.asarray(variable, np.float64).tolist() for variable in every]


def fit(make: Callable[[], Any], strategy: Any, last: int = SHARE, **options: Any) -> Any:
    """Returns weights and metrics of a fitted model; strategy "" is one process, eagerly."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    no_horovod = mock.patch.object(hvd, "DistributedOptimizer", lambda optimizer: optimizer)
    with contextlib.nullcontext() if strategy else no_horovod:
        model = make()
    model.run_eagerly = not strategy
    if strategy:
        fitting = tf_libra.keras.optimize(model, strategy, **options)
    history = model.fit(data(model, not strategy, last), epochs=EPOCHS, verbose=0)
    return {
        "weights": weights(model),
        "history": history.history,
        "evaluated": model.evaluate(data(model, True), verbose=0, return_dict=True),
        "explained": fitting.explain() if strategy else "",
    }


class Record(keras.callbacks.Callback):
    """Weights and learning rate at the ends of epochs, read on one rank alone."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        self.found.append([rate, weights(self.model)])


def uneven(alone: bool) -> tf.data.Dataset:
    """Returns batches of which the last one is of rank 0 alone."""
    batches = shares(alone)
    if not alone:
        return batches if RANK == 0 else batches.take(BATCHES - 1)
    last = batches.skip(BATCHES - 1).map(lambda inputs, labels: (inputs[:SHARD], labels[:SHARD]))
    return batches.take(BATCHES - 1).concatenate(last)


@contextlib.contextmanager
def drifting(chosen: str) -> Iterator[None]:
    """Lets step times change in the next step, and a family win the trials that follow."""
    due = [True]

    def drift(*_: Any) -> bool:
        due.clear()
        return True

    with (
        every_family_in_trials(chosen),
        mock.patch.object(family_trials, "NUM_ROUNDS", 2),
        mock.patch.object(FamilyWatch, "is_due", property(lambda _: bool(due))),
        mock.patch.object(FamilyWatch, "has_drifted", drift),
    ):
        yield


def through_trials(alone: bool) -> Any:
    """Fits through trials that one rank wins, with callbacks that read and write variables.

    Then fits batches of which one rank has fewer, and through drifts to data parallelism, which
    runs two steps in a graph, to a pipeline, and to a burst.
    """
    keras.utils.clear_session()
    model = compiled(plain_model, steps_per_execution=2)
    record, folder = Record(), FOLDER / f"trials {'alone' if alone else ''} {RANK}"
    fitting = None
    if not alone:
        strategy = Auto(threads=(1,), streams=(1,))
        steady = tf_libra.Tuning(retune_overhead=0.0, max_seconds=1e6)
        fitting = tf_libra.keras.optimize(model, strategy, max_tuning_steps=15, tuning=steady)
    path = str(folder / "{epoch}.weights.h5")
    callbacks = [
        *([] if alone else [tf_libra.keras.AverageMetrics()]),
        keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=10.0, factor=0.8),
        keras.callbacks.EarlyStopping(patience=9, min_delta=10.0, restore_best_weights=True),
        keras.callbacks.BackupAndRestore(folder / "backup"),
    ]
    if alone or RANK == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(path, save_weights_only=True))
    if alone or RANK == 1:
        callbacks.append(record)
    with every_family_in_trials("one-rank"):
        history = model.fit(
            shares(alone, short=True),
            epochs=12,
            verbose=0,
            validation_data=shares(alone=True, seed=1),
            callbacks=callbacks,
        )
        restored = weights(model)
        explained = fitting.explain() if fitting else ""
        plan = type(fitting.plan).__name__ if fitting else ""
        model.fit(uneven(alone), epochs=1, verbose=0)
    last, plans = weights(model), []
    for chosen in (FIRST, "spp", "deeppool"):
        with drifting(chosen):
            model.fit(shares(alone), epochs=10, verbose=0)
        plans.append(type(fitting.plan).__name__ if fitting else "")
    drifted = weights(model)
    if alone or RANK == 0:
        model.load_weights(path.format(epoch=8))
    return {
        "history": {name: [*map(float, found)] for name, found in history.history.items()},
        "record": record.found,
        "restored": restored,
        "uneven": last,
        "drifted": drifted,
        "plans": plans,
        "saved": weights(model)[: len(model.trainable_variables)],
        "plan": plan,
        "explained": explained,
    }


for name, make in MODELS.items():
    references.add(lambda make=make: fit(make, ""), f"families_{name}")
    cases.add(
        f"families_{name}",
        lambda make=make: {
            family: fit(make, strategy) for family, strategy in {"data": "wfbp", **FAMILIES}.items()
        },
    )
references.add(lambda: through_trials(alone=True), "family_trials")
cases.add("family_trials", lambda: through_trials(alone=False))

if __name__ == "__main__":
    hvd.init()
    references.run()
    cases.run()
