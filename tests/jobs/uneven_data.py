"""Ranks with different numbers of batches, against one process that trains each batch as its rank.

Weights, and what the ranks keep for themselves, are saved as `ours/` and `alone RANK/`.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import models
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE, Cases

import tf_libra
import tf_libra.keras
from tf_libra.strategies import Spp

# Batches of each rank.
UNEVEN = (4, 9, 8)[:SIZE]
TUNING = {"max_tuning_steps": 4, "progress": False}

cases = Cases()


def batches_of(rank: int, dtype: str = "float32") -> list[Any]:
    """Returns the batches of a rank."""
    joint = [models.batch(number, SIZE, dtype) for number in range(UNEVEN[rank])]
    return [models.part(batch, rank, SIZE) for batch in joint]


class Layers:
    """A model with moving averages and a metric.

    Attributes:
        local: variables that each rank computes from its own examples.
        count: number of traces of `step`.
    """

    def __init__(self, dtype: str = "float32", is_sparse: bool = False) -> None:
        keras.utils.set_random_seed(3)
        first = [keras.layers.Dense(16, activation="tanh", dtype=dtype)]
        if is_sparse:  # the gradient of a table is gathered
            kinds = keras.layers.Discretization([-1.0, 0.0, 1.0])
            first = [kinds, keras.layers.Embedding(5, 4, dtype=dtype), keras.layers.Flatten()]
        self.model = keras.Sequential(
            [
                keras.Input((models.FEATURES,)),
                *first,
                keras.layers.BatchNormalization(dtype=dtype),
                keras.layers.Dense(models.CLASSES, dtype=dtype),
            ]
        )
        self.trained = self.model.trainable_variables
        self.optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        self.optimizer.build(self.trained)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.metric = keras.metrics.Mean()
        self.local = [*self.model.non_trainable_variables, *self.metric.variables]
        self.count = 0

    def gradients(self, inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss(labels, self.model(inputs, training=True))
        gradients = tape.gradient(loss, self.trained)
        self.metric.update_state(tf.cast(loss, "float32"))
        return gradients

    def update(self, gradients: Any) -> None:
        self.optimizer.apply_gradients(zip(gradients, self.trained, strict=True))

    def step(self, inputs: Any, labels: Any) -> None:
        self.count += 1
        self.update(self.gradients(inputs, labels))

    def weights(self) -> Sequence[Any]:
        return [*self.trained, *self.optimizer.variables]


class Penalized:
    """A gradient of the inputs inside the loss, a clipped one, and a head of each rank's own."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        self.trained = [
            tf.Variable(random.normal(size=shape), name=name)
            for name, shape in (("w", (models.FEATURES, 8)), ("v", (8, models.CLASSES)))
        ]
        self.head = tf.Variable(np.zeros(models.CLASSES), name="head")
        self.local = [self.head]
        self.count = 0

    def gradients(self, inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                hidden = clipped(tf.nn.tanh(inputs @ self.trained[0]))
                loss = models.cross_entropy(labels, hidden @ self.trained[1] + self.head)
            slope = tf.norm(inner.gradient(loss, inputs))
            loss += (slope - 1.0) ** 2
        *gradients, own = tape.gradient(loss, [*self.trained, self.head])
        self.head.assign_sub(0.3 * own)
        return gradients

    def update(self, gradients: Any) -> None:
        for variable, gradient in zip(self.trained, gradients, strict=True):
            variable.assign_sub(0.2 * gradient)

    def step(self, inputs: Any, labels: Any) -> None:
        self.count += 1
        self.update(self.gradients(inputs, labels))

    def weights(self) -> Sequence[Any]:
        return self.trained


@tf.custom_gradient
def clipped(values: Any) -> Any:
    """Returns the values; their gradient is clipped, which is not linear."""
    return tf.identity(values), lambda upstream: tf.clip_by_value(upstream, -0.02, 0.02)


def train_alone(model: Any, joint: Sequence[Sequence[Any]], local: Any = None) -> list[Any]:
    """Trains in one process. Returns the values of rank-local variables, by rank.

    Args:
        one: the model.
        joint: batches of each rank.
        local: values of rank-local variables in the beginning; None: those of the model.
    """
    local = local or [[np.asarray(v) for v in model.local] for _ in joint]
    for step in range(max(map(len, joint))):
        found = []
        for rank, batches in enumerate(joint):
            if step < len(batches):
                for variable, value in zip(model.local, local[rank], strict=True):
                    variable.assign(value)
                found.append(model.gradients(*batches[step]))
                local[rank] = [np.asarray(v) for v in model.local]
        model.update(
            [
                sum(map(tf.convert_to_tensor, parts)) / len(found)
                for parts in zip(*found, strict=True)
            ]
        )
    return local


_TURNS = itertools.count()


def save(ours: Any, alone: Any, train: Callable[[], Sequence[Any]]) -> None:
    """Saves weights and rank-local variables of this rank and, in its turn, of the process.

    Args:
        ours: the model that all ranks have trained.
        alone: the model of the process.
        train: trains it, as `train_alone` does, which takes longer than the ranks' training.
    """
    values = {"ours": ours.local}
    if next(_TURNS) % SIZE == RANK:
        values |= {f"alone {rank}": local for rank, local in enumerate(train())}
    save_values(ours, alone, values)


def save_values(ours: Any, alone: Any, local: dict[str, Sequence[Any]]) -> None:
    """Saves weights with rank-local variables, of `ours` and of any others."""
    cases.save(
        **{
            f"{whose}/{kind}{number}": value
            for whose, own in local.items()
            for kind, found in (
                ("weight", (ours if whose == "ours" else alone).weights()),
                ("own", own),
            )
            for number, value in enumerate(found)
        }
    )


def train(
    make: Callable[[], Any],
    wrap: Callable[[Any], Any] = list,
    dtype: str = "float32",
    **options: Any,
) -> Any:
    """Trains in a loop over `tf_libra.join`, saves weights, and describes the loop."""
    ours, alone = make(), make()
    step = tf_libra.optimize(**{"strategy": "libra"} | TUNING | options)(tf.function(ours.step))
    joined, repeated = tf_libra.join(wrap(batches_of(RANK, dtype))), 0
    for inputs, labels in joined:
        step(inputs, labels)
        repeated += joined.is_repeating
    joint = [batches_of(rank, dtype) for rank in range(SIZE)]
    save(ours, alone, lambda: train_alone(alone, joint))
    step.check_variables()
    return {"repeated": repeated, "phase": str(step.phase), "traces": ours.count}


@cases
def known() -> Any:
    return train(Layers)


@cases
def unknown() -> Any:
    """Ranks still tune when one of them has no batch any more."""
    return train(Layers, iter, max_tuning_steps=60)


@cases
def sparse() -> Any:
    return train(lambda: Layers("float64", True), dtype="float64", check_numerics="raise")


@cases
def half() -> Any:
    return train(lambda: Layers("float16"), dtype="float16")


@cases
def penalized() -> Any:
    return train(Penalized, dtype="float64", local_variables=["head"])


@cases
def not_finite_at_the_end() -> Any:
    """The last batch of rank 0 does not count, and the repeated one hinders no other rank."""
    ours, alone = Layers(), Layers()
    options = TUNING | {"check_numerics": "skip"}
    step = tf_libra.optimize("wfbp", **options)(tf.function(ours.step))
    joint = [batches_of(rank) for rank in range(SIZE)]
    last = UNEVEN[0] - 1
    inputs, labels = joint[0][last]
    bad = (inputs * np.nan, labels)
    for batch in tf_libra.join([*joint[0][:last], bad] if RANK == 0 else joint[RANK]):
        step(*batch)
    del joint[0][last]
    for batches in joint[1:]:  # that step counts on no rank
        del batches[last]
    save(ours, alone, lambda: train_alone(alone, joint))


@cases
def even() -> Any:
    """Equally many batches, with and without `join`: the same bits of the same trace."""
    joint = [models.part(models.batch(n, SIZE, "float32"), RANK, SIZE) for n in range(6)]
    plain, joined = Layers(), Layers()
    step = tf_libra.optimize("wfbp", **TUNING)(tf.function(plain.step))
    for batch in joint:
        step(*batch)
    step = tf_libra.optimize("wfbp", **TUNING)(tf.function(joined.step))
    for batch in tf_libra.join(joint):
        step(*batch)
    save_values(joined, plain, {"ours": joined.local, f"alone {RANK}": plain.local})
    return {"traces": [plain.count, joined.count]}


@cases
def even_again() -> Any:
    """A loop of unequal data, and then steps without `join`, under the first trace."""
    ours, alone = Layers(), Layers()
    step = tf_libra.optimize("libra", **TUNING)(tf.function(ours.step))
    joint = [batches_of(rank) for rank in range(SIZE)]
    first = [batches[: 2 + rank] for rank, batches in enumerate(joint)]
    for batch in tf_libra.join(first[RANK]):
        step(*batch)
    for batch in joint[RANK][:3]:
        step(*batch)
    rest = [batches[:3] for batches in joint]
    save(ours, alone, lambda: train_alone(alone, rest, train_alone(alone, first)))
    return {"traces": ours.count}


@cases
def fit() -> Any:
    ours, alone = Layers(), Layers()
    ours.model.compile(ours.optimizer, ours.loss, metrics=["accuracy"])
    fitting = tf_libra.keras.optimize(ours.model, "libra", max_tuning_steps=4)
    inputs, labels = (np.concatenate(part) for part in zip(*batches_of(RANK), strict=True))
    history = ours.model.fit(
        inputs,
        labels,
        batch_size=models.SHARD,
        shuffle=False,
        epochs=2,
        verbose=0,
        callbacks=[tf_libra.keras.AverageMetrics()],
    )
    for trainer in (ours, alone):
        trainer.local = trainer.model.non_trainable_variables  # fit has metrics of its own
    joint = [batches_of(rank) for rank in range(SIZE)]
    save(ours, alone, lambda: train_alone(alone, joint, train_alone(alone, joint)))
    return {"phase": str(fitting.phase), "history": history.history}


@cases
def no_batch() -> Any:
    for _ in tf_libra.join([] if RANK == 0 else [1]):
        pass


@cases
def no_batch_of_unknown_number() -> Any:
    for _ in tf_libra.join(iter([] if RANK == 0 else [1])):
        pass


@cases
def in_a_pipeline() -> Any:
    reject(Spp(num_microbatches=2, num_stages=2), Layers().step)


@cases
def averaged_inside() -> Any:
    reject("wfbp", Layers().step, inner_gradients="average")


@cases
def per_example() -> Any:
    model = Layers()

    def step(inputs: Any, labels: Any) -> Any:
        model.step(inputs, labels)
        with tf.GradientTape() as tape:
            outputs = model.model(inputs)
        return tape.jacobian(outputs, model.trained[0])

    reject("wfbp", step)


def reject(strategy: Any, function: Any, **options: Any) -> None:
    step = tf_libra.optimize(strategy, **options)(tf.function(function))
    for batch in tf_libra.join(batches_of(0)):
        step(*batch)


cases.run()
