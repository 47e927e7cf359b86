"""The variables that two workers compare and copy, and the ops that a step must have executed."""

import logging
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import keras
import models
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, Cases

import tf_libra
from tf_libra.runtime.training_step import TrainingFunction

cases = Cases()
LAST = SIZE - 1
# Measuring that ends early still leads through every phase.
BRIEFLY: dict[str, Any] = {"strategy": "mg-wfbp", "max_tuning_steps": 2}
STEPS = 4


def shard(number: int = 0, rank: int = RANK) -> tuple[Any, Any]:
    return models.part(models.batch(number, SIZE, "float32"), rank, SIZE)


def bits(variables: Any) -> list[str]:
    return [np.asarray(tf.convert_to_tensor(one)).tobytes().hex() for one in variables]


def own_seed() -> int:
    return 1 + RANK


def hand_written(seed: int | None = None) -> models.HandWritten:
    return models.HandWritten("float32", "adam", own_seed() if seed is None else seed)


def train(step: Callable[..., Any], *given: Any, first: int = 0, steps: int = STEPS) -> None:
    for number in range(first, first + steps):
        step(*given, *shard(number))


def told(model: models.HandWritten) -> dict[str, Any]:
    """The weights after training, and what one process gets from rank 0's on the joint batch."""
    alone = hand_written(seed=1)
    for number in range(STEPS):
        alone.step(*models.batch(number, SIZE, "float32"))
    pairs = zip(model.variables, alone.variables, strict=True)
    error = max(float(np.max(np.abs(a.numpy() - b.numpy()))) for a, b in pairs)
    return {"bits": bits(model.variables), "error": error}


# Unequal starts.


@cases
def unequal_starts() -> Any:
    model = hand_written()
    train(tf_libra.optimize(**BRIEFLY)(tf.function(model.step)))
    return told(model)


@cases
def unequal_starts_refused() -> Any:
    model = hand_written()
    train(tf_libra.optimize(broadcast_variables=False, **BRIEFLY)(tf.function(model.step)))


@cases
def equal_starts() -> Any:
    model = hand_written(seed=1)
    train(tf_libra.optimize(broadcast_variables=False, **BRIEFLY)(tf.function(model.step)))
    return told(model)


@cases
def broadcast_by_horovod_after_the_first_batch() -> Any:
    model = hand_written()
    step = tf_libra.optimize(**BRIEFLY)(tf.function(model.step))
    for number in range(STEPS):
        step(*shard(number))
        if number == 0:
            hvd.broadcast_variables(model.variables, root_rank=0)
    return told(model)


@cases
def checkpoint_restored_on_rank_0_alone() -> Any:
    prefix = str(FOLDER / f"checkpoint.{RANK}")
    saved = hand_written(seed=1)
    path = tf.train.Checkpoint(variables=saved.variables).write(prefix)
    model = hand_written(seed=9)
    if RANK == 0:
        tf.train.Checkpoint(variables=model.variables).read(path)
    train(tf_libra.optimize(**BRIEFLY)(tf.function(model.step)))
    return told(model)


class Restored(models.HandWritten):
    """Computes another gradient on request, hence has a plan of its own."""

    def __init__(self) -> None:
        super().__init__("float32", "sgd")
        self.extra = tf.Variable(tf.fill([models.CLASSES], 0.1 * own_seed()), name="extra")

    def step(self, inputs: Any, labels: Any, more: bool = False) -> Any:
        chosen = [*self.variables, self.extra] if more else self.variables
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
            if more:
                loss += tf.reduce_sum(self.extra**2)
        for one, gradient in zip(chosen, tape.gradient(loss, chosen), strict=True):
            one.assign_sub(0.1 * gradient)
        return loss


def changed_before_a_new_trace(**options: Any) -> Any:
    model = Restored()
    step = tf_libra.optimize(**BRIEFLY, **options)(tf.function(model.step))
    train(step)
    if RANK == LAST:
        model.variables[0].assign_add(tf.ones_like(model.variables[0]))
    for number in range(2):
        step(*shard(number), more=True)
    step.check_variables()
    return bits([*model.variables, model.extra])


@cases
def changed_before_a_new_trace_is_refused() -> Any:
    return changed_before_a_new_trace()


@cases
def changed_before_a_new_trace_is_copied() -> Any:
    return changed_before_a_new_trace(broadcast_variables=True)


@cases
def layer_that_is_thawed() -> Any:
    """Only the new variable is copied: it is the first that differs."""
    model = Restored()
    step = tf_libra.optimize(**BRIEFLY)(tf.function(model.step))
    train(step)
    for number in range(2):
        step(*shard(number), more=True)
    step.check_variables()
    return bits([*model.variables, model.extra])


@cases
def learning_rate_of_each_rank() -> Any:
    """The learning rate of each rank flows into the weights without being averaged."""
    model = hand_written(seed=1)
    rate = tf.Variable(0.1 * own_seed(), trainable=False, name="rate")

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(inputs, labels)
        for one, gradient in zip(
            model.variables, tape.gradient(loss, model.variables), strict=True
        ):
            one.assign_sub(rate * gradient)

    train(tf_libra.optimize(**BRIEFLY)(tf.function(step)))
    return [float(rate), bits(model.variables)]


# Variables that are arguments, and models of the same names.


def descend(variables: Any, inputs: Any, labels: Any) -> Any:
    with tf.GradientTape() as tape:
        hidden = tf.nn.tanh(inputs @ variables["w0"] + variables["b0"])
        loss = models.cross_entropy(labels, hidden @ variables["w1"])
    chosen = [variables[name] for name in ("w0", "b0", "w1")]
    for one, gradient in zip(chosen, tape.gradient(loss, chosen), strict=True):
        one.assign_sub(0.1 * gradient)
    return loss


def weights(seed: int) -> dict[str, tf.Variable]:
    random = np.random.default_rng(seed)

    def made(name: str, *shape: int) -> tf.Variable:
        return tf.Variable(random.normal(size=shape).astype("float32"), name=name)

    return {
        "w0": made("w0", models.FEATURES, 8),
        "b0": made("b0", 8),
        "w1": made("w1", 8, models.CLASSES),
    }


@cases
def variables_as_arguments() -> Any:
    step = tf_libra.optimize(**BRIEFLY)(tf.function(descend))
    folds = [weights(10 * fold + RANK) for fold in range(3)]
    for fold in folds:
        train(step, fold)
    step.check_variables()
    return {
        "bits": [bits(fold.values()) for fold in folds],
        "traces": step._training._tracer.function.experimental_get_tracing_count(),
    }


@cases
def variables_as_arguments_refused() -> Any:
    """The first are equal, the next are not."""
    step = tf_libra.optimize(broadcast_variables=False, **BRIEFLY)(tf.function(descend))
    train(step, weights(1))
    train(step, weights(own_seed()))


@cases
def variables_as_arguments_checked() -> Any:
    step = tf_libra.optimize(**BRIEFLY)(tf.function(descend))
    folds = [weights(1), weights(2)]
    for fold in folds:
        train(step, fold)
    if RANK == LAST:
        folds[0]["b0"].assign_add(tf.ones([8]))
    step.check_variables()


@cases
def variables_as_arguments_are_undone() -> Any:
    step = tf_libra.optimize(check_numerics="skip", **BRIEFLY)(tf.function(descend))
    fold = weights(1)
    train(step, fold)
    before = bits(fold.values())
    inputs, labels = shard()
    step(fold, inputs * (np.nan if RANK == LAST else 1), labels)
    return bits(fold.values()) == before


@cases
def models_of_the_same_names() -> Any:
    """K-fold: the step gets the model itself."""
    step = tf_libra.optimize(**BRIEFLY)(
        tf.function(lambda model, inputs, labels: model.step(inputs, labels))
    )
    folds = [models.HandWritten("float32", "sgd", 10 * fold + RANK) for fold in range(3)]
    for fold in folds:
        train(step, fold)
    step.check_variables()
    return [bits(fold.variables) for fold in folds]


# What may differ.


class Normalized:
    """A Keras model with what differs between ranks by nature, and what does not."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(own_seed())
        layers = keras.layers
        self.frozen = layers.Dense(8, activation="tanh", name="frozen")
        self.frozen.trainable = False
        self.model = keras.Sequential(
            [
                layers.Input((models.FEATURES,)),
                self.frozen,
                layers.BatchNormalization(),
                layers.Dropout(0.1),
                layers.Dense(models.CLASSES),
            ]
        )
        self.optimizer = keras.optimizers.Adam(0.01)
        self.loss = keras.metrics.Mean(name="loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        self.average = [(tf.Variable(v.value), v) for v in self.model.trainable_variables]
        self.decay = tf.Variable(0.9, trainable=False, name="decay")

    def step(self, inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = self.model(inputs, training=True)
            loss = models.cross_entropy(labels, logits)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.loss.update_state(loss)
        self.accuracy.update_state(labels, logits)
        for average, variable in self.average:
            average.assign(self.decay * average + (1 - self.decay) * variable)
        return loss

    def equal(self) -> list[str]:
        slots = [v for v in self.optimizer.variables if "seed" not in v.path]
        weights = [v for v in self.model.weights if "moving" not in v.path]
        weights = [v for v in weights if "seed" not in v.path]
        return bits([*weights, *slots, *(average for average, _ in self.average)])

    def own(self) -> list[float]:
        moving = [v for v in self.model.weights if "moving_mean" in v.path]
        return [float(tf.reduce_sum(v)) for v in [*moving, self.loss.total]]


@cases
def moving_averages_and_metrics() -> Any:
    """A second function, a thawed layer and a comparison find nothing wrong."""
    model = Normalized()
    step = tf_libra.optimize(**BRIEFLY)(tf.function(model.step))
    train(step)
    step.check_variables()
    again = tf_libra.optimize(broadcast_variables=False, **BRIEFLY)(tf.function(model.step))
    train(again)
    again.check_variables()
    model.frozen.trainable = True
    model.optimizer = keras.optimizers.Adam(0.01)
    thawed = tf_libra.optimize(broadcast_variables=False, **BRIEFLY)(tf.function(model.step))
    train(thawed)
    for one in (step, again, thawed):
        one.check_variables()
    return {"equal": model.equal(), "own": model.own()}


@cases
def keras_compiled_twice() -> Any:
    import tf_libra.keras

    model = Normalized().model
    for _ in range(2):
        model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
        fitting = tf_libra.keras.optimize(model, **BRIEFLY)
        inputs, _ = shard()
        model.fit(inputs, inputs[:, : models.CLASSES], epochs=4, batch_size=4, verbose=0)
        fitting._steps.check_variables()
    return bits(model.trainable_variables)


@cases
def metrics_of_batches_of_different_sizes() -> Any:
    """A metric's count is a constant of the trace, and differs between ranks."""
    model = hand_written(seed=1)
    seen = tf.Variable(0, trainable=False, name="seen")
    counted = tf.Variable(0, trainable=False, name="counted")

    def step(inputs: Any, labels: Any) -> Any:
        seen.assign_add(len(inputs))
        counted.assign_add(1)
        return model.step(inputs, labels)

    step = tf_libra.optimize(**BRIEFLY)(tf.function(step))
    for number in range(6):
        inputs, labels = shard(number)
        rows = 4 - RANK if number < 3 else 4
        step(inputs[:rows], labels[:rows])
    step.check_variables()
    return [int(seen), int(counted)]


@cases
def counter_that_starts_unequal() -> Any:
    model = hand_written(seed=1)
    counted = tf.Variable(10 * RANK, trainable=False, name="counted")

    def step(inputs: Any, labels: Any) -> Any:
        counted.assign_add(1)
        return model.step(inputs, labels)

    train(tf_libra.optimize(**BRIEFLY)(tf.function(step)))
    return int(counted)


def data_of_each_rank(**options: Any) -> Any:
    """Read by the step, as data of its own are; and written by it, as a replay buffer is."""
    model = hand_written(seed=1)
    inputs, labels = shard()
    data = tf.Variable(inputs, trainable=False, name="data")
    buffer = tf.Variable(tf.fill([2, models.FEATURES], float(RANK)), trainable=False, name="buffer")

    def step(new: Any) -> Any:
        buffer[0].assign(new[0])
        return model.step(data, labels)

    step = tf_libra.optimize(**BRIEFLY, **options)(tf.function(step))
    for number in range(STEPS):
        step(shard(number)[0])
    step.check_variables()
    kept = np.array_equal(data.numpy(), inputs) and float(buffer[1, 0]) == RANK
    return {"kept": bool(kept), "bits": bits(model.variables)}


@cases
def data_of_each_rank_by_default() -> Any:
    return data_of_each_rank()


@cases
def data_of_each_rank_and_broadcast() -> Any:
    return data_of_each_rank(broadcast_variables=True)


@cases
def data_of_each_rank_and_no_broadcast() -> Any:
    return data_of_each_rank(broadcast_variables=False)


def statistics_of_frozen_layers(*callbacks: Any, **options: Any) -> Any:
    """Rank 0 alone has loaded a frozen layer's statistics; each adapts another to its share."""
    import tf_libra.keras

    keras.utils.set_random_seed(1)
    adapted = keras.layers.Normalization(name="adapted")
    frozen = keras.layers.BatchNormalization(name="frozen")
    top = keras.layers.Dense(models.CLASSES, name="top")
    model = keras.Sequential([keras.Input((models.FEATURES,)), adapted, frozen, top], name="net")
    inputs, labels = shard()
    adapted.adapt(inputs)
    frozen.trainable = False
    if RANK == 0:
        frozen.moving_mean.assign(frozen.moving_mean + 2.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    same = models.batch(9, 1, "float32")[0]
    model.predict(same, verbose=0)  # traced with the statistics of before
    tf_libra.keras.optimize(model, **BRIEFLY, **options)
    model.fit(inputs, labels, epochs=4, batch_size=4, verbose=0, callbacks=callbacks)
    return model.predict(same, verbose=0).tolist()


@cases
def statistics_that_differ() -> Any:
    return statistics_of_frozen_layers()


@cases
def statistics_that_are_named() -> Any:
    return statistics_of_frozen_layers(local_variables=["net/frozen/moving_mean", "net/adapted/*"])


@cases
def statistics_that_are_broadcast() -> Any:
    import tf_libra.keras

    return statistics_of_frozen_layers(tf_libra.keras.BroadcastVariables())


@cases
def own_variables_by_name() -> Any:
    """Rank-local variables that are trainable by oversight, or count."""
    model = hand_written(seed=1)
    inputs = shard()[0]
    data = tf.Variable(inputs, name="rank/data")
    counted = tf.Variable(10 * RANK, trainable=False, name="counted")

    def step(unused: Any, labels: Any) -> Any:
        counted.assign_add(1)
        return model.step(data, labels)

    step = tf_libra.optimize(
        local_variables=["rank/*", counted, "missing*"], broadcast_variables=False, **BRIEFLY
    )(tf.function(step))
    train(step)
    step.check_variables()
    kept = np.array_equal(data.numpy(), inputs)
    return {"kept": bool(kept), "counted": int(counted), "bits": bits(model.variables)}


@cases
def trained_by_each_rank_for_itself() -> Any:
    """A trunk that all train, and a head of each rank's."""
    inputs, _ = shard()
    width = int(inputs.shape[1])
    trunk = tf.Variable(tf.ones([width, 3], inputs.dtype), name="trunk")
    head = tf.Variable((1.0 + RANK) * tf.ones([3, 1], inputs.dtype), name="own/head")

    def slopes(data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(data @ trunk) @ head) ** 2)
        return tape.gradient(loss, [trunk, head])

    def step(data: Any) -> None:
        for variable, slope in zip((trunk, head), slopes(data), strict=True):
            variable.assign_sub(0.1 * slope)

    step = tf_libra.optimize(local_variables=["own/*"], **BRIEFLY)(tf.function(step))
    worst = 0.0
    for _ in range(4):
        own = head - 0.1 * slopes(tf.constant(inputs))[1]
        step(tf.constant(inputs))
        worst = max(worst, float(tf.reduce_max(tf.abs(own - head))))
    step.check_variables()
    return {"worst": worst, "bits": bits([trunk]), "head": bits([head])}


@cases
def gradients_accumulated_by_each_rank() -> Any:
    model = hand_written(seed=1)
    sums = [tf.Variable(tf.zeros_like(v), trainable=False, name="sum") for v in model.variables]
    count = tf.Variable(0, trainable=False, name="count")

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(inputs, labels)
        gradients = tape.gradient(loss, model.variables)
        for one, variable in zip(sums, model.variables, strict=True):
            one.assign_add(tf.reduce_sum(inputs) * tf.ones_like(variable))
        count.assign_add(1)
        model.update(gradients)

    step = tf_libra.optimize(broadcast_variables=False, **BRIEFLY)(tf.function(step))
    train(step)
    step.check_variables()
    return bits(model.variables)


# Differences that no check finds before the variables are checked.


def checked_after(step: Callable[..., Any], *variables: Any) -> Any:
    """Returns which variables differ between the ranks after training, and the error's text."""
    step = tf_libra.optimize(**BRIEFLY)(tf.function(step))
    train(step)
    differ = [len(set(hvd.allgather_object(one))) > 1 for one in bits(variables)]
    try:
        step.check_variables()
    except ValueError as error:
        return {"differ": differ, "said": str(error)}
    return {"differ": differ, "said": ""}


@cases
def noise_of_each_rank_after_averaging() -> Any:
    """The slots of the optimizer are made by hand, and trainable by default."""
    model = hand_written(seed=1)
    noise = tf.random.Generator.from_seed(own_seed())

    def step(inputs: Any, labels: Any) -> Any:
        model.step(inputs, labels)
        weight = model.variables[0]
        weight.assign_add(0.01 * noise.normal(weight.shape))

    return checked_after(step, *model.variables)


@cases
def update_under_a_condition_of_each_rank() -> Any:
    """All gradients are averaged in every step, and one rank does not use them."""
    model = models.HandWritten("float32", "sgd", 1)

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(inputs, labels)
        gradients = tape.gradient(loss, model.variables)
        is_used = tf.reduce_sum(inputs) == total
        tf.cond(is_used, lambda: model.update(gradients), lambda: None)

    total = tf.reduce_sum(shard(rank=0)[0])
    return checked_after(step, *model.variables)


@cases
def unequal_starts_with_slots_by_hand_and_a_rate_as_argument() -> Any:
    """The rate is the rank's own for all that the graph tells."""
    model = models.HandWritten("float32", "sgd", own_seed())
    slots = [tf.Variable(tf.zeros_like(one)) for one in model.variables]

    def step(rate: Any, inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(inputs, labels)
        gradients = tape.gradient(loss, model.variables)
        for weight, slot, gradient in zip(model.variables, slots, gradients, strict=True):
            slot.assign(0.9 * slot + gradient)
            weight.assign_sub(rate * slot)

    train(tf_libra.optimize(**BRIEFLY)(tf.function(step)), tf.constant(0.1))
    return bits(model.variables)


# What a step must have executed.


class Forgetful:
    """A graph that was rewritten so that it reduces nothing: it returns, and is wrong."""

    def __init__(self, marked: Any, plain: Any, forgets: Callable[[], bool]) -> None:
        self._marked, self._plain, self._forgets = marked, plain, forgets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._marked, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._plain if self._forgets() else self._marked)(*args, **kwargs)


def forgets(at: int, ranks: tuple[int, ...]) -> Any:
    model = hand_written(seed=1)
    function = tf.function(model.step)
    step = tf_libra.optimize(**BRIEFLY)(function)
    number = 0
    training: TrainingFunction = step._training
    training._tracer.function = Forgetful(
        training._tracer.function, function, lambda: number == at and RANK in ranks
    )
    for number in range(6):
        inputs, labels = shard(number)
        step(*((inputs[:2], labels[:2]) if number == 5 else (inputs, labels)))


@cases
def reduces_nothing_at_first() -> Any:
    forgets(0, (0, 1))


@cases
def reduces_nothing_later() -> Any:
    forgets(4, (0, 1))


@cases
def reduces_nothing_for_a_new_shape() -> Any:
    forgets(5, (0, 1))


@cases
def reduces_nothing_on_one_rank() -> Any:
    forgets(4, (LAST,))


def several(function: Callable[..., Any]) -> Any:
    """A graph of as many steps as it gets batches, as `steps_per_execution` makes one."""
    once = tf.function(function)

    def steps(batches: Any) -> None:
        for inputs, labels in batches:
            once(inputs, labels)

    return tf_libra.optimize(**BRIEFLY)(tf.function(steps))


def train_several(step: Any, rounds: int = 2, each: int = 3) -> None:
    """Single steps until a plan is settled, and then several in one graph."""
    number = 0
    while not step.settled:
        step((shard(number),))
        number += 1
    for _ in range(rounds):
        step.several(each, tuple(shard(number + i) for i in range(each)))
        number += each


@cases
def one_of_several_steps_reduces_nothing() -> Any:
    model = hand_written(seed=1)
    step = several(model.step)
    training: TrainingFunction = step._training
    marked = training._tracer.function

    def all_but_the_last(batches: Any) -> None:
        marked(batches[:-1])
        model.step(*batches[-1])

    training._tracer.function = Forgetful(marked, all_but_the_last, lambda: step.settled)
    train_several(step)


@cases
def reduces_under_a_condition() -> Any:
    """As with backward_passes_per_step: every other step all-reduces, and that is right.

    Then in graphs of three steps, and of one, that may have no such step at all.
    """
    model = hand_written(seed=1)
    count = tf.Variable(0, trainable=False, name="count")

    @tf.function
    def update(inputs: Any, labels: Any) -> Any:
        return model.step(inputs, labels)

    def step(inputs: Any, labels: Any) -> Any:
        count.assign_add(1)
        return tf.cond(count % 2 == 0, lambda: update(inputs, labels), lambda: 0.0)

    stepping = several(step)
    train_several(stepping)
    for number in range(3):
        stepping.several(1, (shard(number),))
    return bits(model.variables)


@cases
def reduces_partly_under_a_condition() -> Any:
    """A critic that is trained in every step, and a generator in every third."""
    critic, generator = hand_written(seed=1), hand_written(seed=2)
    count = tf.Variable(0, trainable=False, name="count")

    def step(inputs: Any, labels: Any) -> Any:
        critic.step(inputs, labels)
        count.assign_add(1)
        tf.cond(count % 3 == 0, lambda: generator.step(inputs, labels), lambda: 0.0)

    train_several(several(step))
    return bits([*critic.variables, *generator.variables])


if __name__ == "__main__":
    logging.getLogger("tf_libra").setLevel(logging.INFO)
    hvd.init()
    cases.run()
