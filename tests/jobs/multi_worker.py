"""Steps of a MultiWorkerMirroredStrategy under plans, against the strategy alone.

No module imports Horovod. Each case trains twice from the same weights on the same data.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import models
import numpy as np
import tensorflow as tf
import tf_keras
from harness import FOLDER, RANK, SIZE, Cases, barrier

import tf_libra
import tf_libra.keras

# Before anything runs, as TensorFlow asks for.
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
STEPS = 9
TUNING = {"max_tuning_steps": 4, "progress": False}

cases = Cases()

# A replica's step, and the variables that it trains.
Replica = tuple[Callable[..., Any], Sequence[Any]]


def data(number: int, shard: int = models.SHARD) -> tuple[Any, Any]:
    """This worker's batch of a step."""
    return models.part(models.batch(number, SIZE, "float32", shard), RANK, SIZE)


def mean_loss(labels: Any, logits: Any) -> Any:
    """Returns this worker's part of the joint batch's mean loss, which is summed over workers."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.nn.compute_average_loss(losses, global_batch_size=SIZE * models.SHARD)


def whole_step(replica: Callable[..., Any]) -> Callable[..., Any]:
    def train_step(*batch: Any) -> Any:
        losses = STRATEGY.run(replica, args=batch)
        return STRATEGY.reduce(SUM, losses, axis=None)

    return train_step


def trained(make: Callable[[], Replica], step: Callable[..., Any], steps: int = STEPS) -> Any:
    """Weights after training by a step that is made of a replica's, and that step."""
    tf.keras.utils.set_random_seed(3)
    with STRATEGY.scope():
        replica, variables = make()
    train_step = step(whole_step(replica))
    losses = [float(train_step(*data(number))) for number in range(steps)]
    return {f"{i}": v.numpy() for i, v in enumerate(variables)}, losses, train_step


@functools.cache
def plainly(make: Callable[[], Replica], steps: int) -> tuple[dict[str, Any], list[float]]:
    """Weights and losses under the strategy alone."""
    return trained(make, tf.function, steps)[:2]


def save_both(plain: dict[str, Any], ours: dict[str, Any], **more: Any) -> None:
    """Weights by name, without us and with us."""
    both = {"plain": plain, "ours": ours}
    named = {f"{who}/{name}": one for who, of in both.items() for name, one in of.items()}
    cases.save(**named, **more)


def against_plain(
    make: Callable[[], Replica], steps: int = STEPS, strategy: str = "libra", **options: Any
) -> dict[str, Any]:
    """Saves the weights of both, and says what became of the step."""
    plain, plain_losses = plainly(make, steps)

    def ours(step: Callable[..., Any]) -> Any:
        return tf_libra.optimize(strategy, **TUNING | options)(tf.function(step))

    weights, losses, train_step = trained(make, ours, steps)
    save_both(plain, weights, plain_losses=plain_losses, losses=losses)
    return describe(train_step)


def describe(train_step: Any) -> dict[str, Any]:
    return {
        "phase": str(train_step.phase),
        "plan": None if train_step.plan is None else train_step.plan.to_json(),
        "explained": train_step.explain(),
        "horovod": sorted(name for name in sys.modules if name.startswith("horovod")),
    }


class Dense:
    """Layers of `tf.Variable`s, made in the strategy's scope."""

    def __init__(self, optimizer: Any) -> None:
        self.net = models.HandWritten("float32", "sgd")
        self.variables = self.net.variables
        self.optimizer = optimizer

    def logits(self, inputs: Any) -> Any:
        for layer in range(0, len(self.variables), 2):
            inputs = inputs @ self.variables[layer] + self.variables[layer + 1]
            if layer + 2 < len(self.variables):
                inputs = tf.nn.tanh(inputs)
        return inputs

    def gradients(self, inputs: Any, labels: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, self.logits(inputs))
        return loss, tape.gradient(loss, self.variables)

    def apply(self, gradients: Sequence[Any]) -> None:
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))

    def descend(self, _: Any, gradients: Sequence[Any]) -> None:
        """Updates the variables of all replicas together, without an optimizer."""
        for variable, gradient in zip(self.variables, gradients, strict=True):
            STRATEGY.extended.update(variable, lambda v, g: v.assign_sub(0.5 * g), (gradient,))

    def step(self, inputs: Any, labels: Any) -> Any:
        loss, gradients = self.gradients(inputs, labels)
        self.apply(gradients)
        return loss


def dense() -> Replica:
    one = Dense(tf.keras.optimizers.Adam(0.01))
    return one.step, one.variables


@cases
def hand_written() -> Any:
    return against_plain(dense, steps=18, max_tuning_steps=14)


@cases
def under_a_given_plan() -> Any:
    plan = models.plan_of(models.HandWritten("float32", "sgd").variables, SIZE, [0, 2, 6], [1, 3])
    path = FOLDER / f"given.{RANK}.json"
    path.write_text(plan.to_json())
    return against_plain(dense, plan=path)


@cases
def called_in_the_scope() -> Any:
    plain, _ = plainly(dense, STEPS)
    tf.keras.utils.set_random_seed(3)
    with STRATEGY.scope():
        replica, variables = dense()
        step = tf_libra.optimize("wfbp", **TUNING)(tf.function(whole_step(replica)))
        for number in range(STEPS):
            step(*data(number))
    save_both(plain, {f"{i}": v.numpy() for i, v in enumerate(variables)})
    return describe(step)


def clipped() -> Replica:
    """Clips by the norm of this worker's gradients, before they are summed."""
    one = Dense(tf.keras.optimizers.SGD(0.1, momentum=0.9))

    def step(inputs: Any, labels: Any) -> Any:
        loss, gradients = one.gradients(inputs, labels)
        one.apply(tf.clip_by_global_norm(gradients, 0.05)[0])
        return loss

    return step, one.variables


def clipped_after() -> Replica:
    """Clips by the norm of the sum, which the script itself all-reduces."""
    one = Dense(None)

    def step(inputs: Any, labels: Any) -> Any:
        loss, gradients = one.gradients(inputs, labels)
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce(SUM, gradients)
        context.merge_call(one.descend, args=(tf.clip_by_global_norm(summed, 0.05)[0],))
        return loss

    return step, one.variables


def averaged() -> Replica:
    """With the mean over workers."""
    one = Dense(None)

    def step(inputs: Any, labels: Any) -> Any:
        loss, gradients = one.gradients(inputs, labels)
        mean = tf.distribute.get_replica_context().all_reduce(MEAN, gradients)
        tf.distribute.get_replica_context().merge_call(one.descend, args=(mean,))
        return loss

    return step, one.variables


def in_functions() -> Replica:
    """The replica's step and what computes gradients are functions of their own."""
    one = Dense(tf.keras.optimizers.SGD(0.1))

    @tf.function
    def gradients(inputs: Any, labels: Any) -> Any:
        return one.gradients(inputs, labels)

    @tf.function
    def step(inputs: Any, labels: Any) -> Any:
        loss, found = gradients(inputs, labels)
        one.apply(found)
        return loss

    return step, one.variables


def two_optimizers() -> Replica:
    """Two optimizers for two halves of the variables, one of which steps twice."""
    one = Dense(None)
    first, second = tf.keras.optimizers.SGD(0.1), tf.keras.optimizers.Adam(0.01)

    def step(inputs: Any, labels: Any) -> Any:
        loss, gradients = one.gradients(inputs, labels)
        pairs = list(zip(gradients, one.variables, strict=True))
        first.apply_gradients(pairs[:2])
        second.apply_gradients(pairs[2:])
        _, again = one.gradients(inputs, labels)
        first.apply_gradients(list(zip(again, one.variables, strict=True))[:2])
        return loss

    return step, one.variables


def scaling(one: Dense) -> Replica:
    """Trains with a loss that the optimizer scales up, and gradients that it scales down again."""

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, one.logits(inputs))
            large = one.optimizer.scale_loss(loss)
        one.apply(tape.gradient(large, one.variables))
        return loss

    return step, one.variables


def scaled() -> Replica:
    """Scales the loss by a factor that is part of the optimizer."""
    return scaling(Dense(tf.keras.optimizers.SGD(0.1, loss_scale_factor=512.0)))


def scaled_by_an_optimizer() -> Replica:
    """Scales the loss by an optimizer that applies finite gradients in a branch of the graph."""
    inner = tf.keras.optimizers.SGD(0.1)
    return scaling(Dense(tf.keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0)))


class Table:
    """An embedding, whose gradient is sparse, and a layer."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        table = random.normal(size=(40, 6)).astype("float32")
        self.variables = [
            tf.Variable(table, name="table"),
            tf.Variable(random.normal(size=(6, models.CLASSES)).astype("float32"), name="kernel"),
            tf.Variable(1.0, name="temperature"),
        ]
        self.optimizer = tf.keras.optimizers.SGD(0.5)

    def step(self, inputs: Any, labels: Any) -> Any:
        words = tf.cast(tf.abs(inputs) * 10, tf.int32) % 40
        with tf.GradientTape() as tape:
            hidden = tf.reduce_mean(tf.gather(self.variables[0], words), axis=1)
            loss = mean_loss(labels, self.variables[2] * (hidden @ self.variables[1]))
        gradients = tape.gradient(loss, self.variables)
        assert isinstance(gradients[0], tf.IndexedSlices)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return loss


def table() -> Replica:
    one = Table()
    return one.step, one.variables


def normalized() -> Replica:
    """Keras layers: batch normalization, dropout that draws, and metrics."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((models.FEATURES,)),
            layers.Dense(16),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dense(models.CLASSES),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(0.01)
    seen = tf.keras.metrics.Mean()

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        seen.update_state(loss)
        return loss

    return step, [*model.trainable_variables, *model.non_trainable_variables]


for make in (
    clipped,
    clipped_after,
    averaged,
    in_functions,
    two_optimizers,
    scaled,
    scaled_by_an_optimizer,
    table,
    normalized,
):
    cases.add(make.__name__, lambda make=make: against_plain(make, strategy="mg-wfbp"))


@cases
def table_made_dense() -> Any:
    return against_plain(table, strategy="wfbp", sparse_as_dense=True)


FITTED = 3 * models.SHARD + 1  # samples of each worker in an epoch: the last batch is short


def joint_batches() -> Any:
    """Returns the batches of all workers, to be divided among them."""
    joint = tf.data.Dataset.from_tensor_slices(models.batch(0, SIZE, "float32", FITTED))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return joint.batch(SIZE * models.SHARD).with_options(options)


@cases
def iterator() -> Any:
    """The commonest loop: the step takes an iterator, and the last batch is short."""

    def weights(step: Callable[..., Any]) -> Any:
        tf.keras.utils.set_random_seed(3)
        with STRATEGY.scope():
            replica, variables = dense()
        dataset = STRATEGY.experimental_distribute_dataset(joint_batches())

        def train_step(batches: Any) -> Any:
            losses = STRATEGY.run(replica, args=next(batches))
            return STRATEGY.reduce(SUM, losses, axis=None)

        call, count = step(train_step), 0
        for _ in range(3):
            batches = iter(dataset)
            while True:
                try:
                    call(batches)
                except tf.errors.OutOfRangeError:
                    break
                count += 1
        return {f"{i}": v.numpy() for i, v in enumerate(variables)}, count, call

    plain, plain_count, _ = weights(tf.function)
    ours, count, step = weights(lambda one: tf_libra.optimize("wfbp", **TUNING)(tf.function(one)))
    save_both(plain, ours)
    return describe(step) | {"counts": [plain_count, count]}


EPOCHS = 3


def fitted(make_model: Any, fit: Callable[[Any, Any], Any]) -> tuple[dict[str, Any], Any, Any]:
    """Weights after three epochs of a model, its history, and what `fit` has returned."""
    tf.keras.utils.set_random_seed(3)
    with STRATEGY.scope():
        model = make_model()
    found = fit(model, joint_batches())
    return {f"{i}": np.asarray(v) for i, v in enumerate(model.trainable_variables)}, model, found


def layers_of(library: Any, **options: Any) -> Any:
    """Three layers, compiled."""
    model = library.Sequential(
        [
            library.layers.InputLayer((models.FEATURES,)),
            library.layers.Dense(16, activation="tanh"),
            library.layers.Dense(9, activation="tanh"),
            library.layers.Dense(models.CLASSES),
        ]
    )
    model.compile(
        library.optimizers.Adam(0.01),
        library.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **options,
    )
    return model


def plain_epochs(model: Any, data: Any) -> None:
    """Trains as `fit` does, without scalars' mean, which Keras 3 lacks for several workers."""
    dataset = STRATEGY.experimental_distribute_dataset(data)

    @tf.function
    def step(batches: Any) -> Any:
        return STRATEGY.run(model.train_step, args=(next(batches),))

    for _ in range(EPOCHS):
        batches = iter(dataset)
        for _ in range(-(-FITTED // models.SHARD)):
            step(batches)


@functools.cache
def plain_fit() -> dict[str, Any]:
    """Weights after as many epochs under the strategy alone."""
    return fitted(lambda: layers_of(keras), plain_epochs)[0]


def fit_against_plain(**options: Any) -> Any:
    plain = plain_fit()

    def ours(model: Any, data: Any) -> Any:
        fitting = tf_libra.keras.optimize(model, "wfbp", max_tuning_steps=4)
        return fitting, model.fit(data, epochs=EPOCHS, validation_data=data, verbose=0)

    weights, model, (fitting, history) = fitted(lambda: layers_of(keras, **options), ours)
    inputs, labels = models.batch(0, SIZE, "float32", FITTED)
    evaluated = float(models.cross_entropy(labels, model(inputs)))
    save_both(plain, weights)
    return describe(fitting) | {"history": history.history, "evaluated": evaluated}


@cases
def keras_fit() -> Any:
    return fit_against_plain()


@cases
def keras_several_steps() -> Any:
    return fit_against_plain(steps_per_execution=2)


@cases
def tf_keras_fit() -> Any:
    """Its training function is a `tf.function`, over which the line goes."""

    def fit(model: Any, data: Any) -> Any:
        return model.fit(data, epochs=EPOCHS, verbose=0)

    def ours(model: Any, data: Any) -> Any:
        step = tf_libra.optimize("wfbp", progress=False, max_tuning_steps=4)(
            model.make_train_function()
        )
        model.train_function = step
        return step, fit(model, data)

    plain, _, _ = fitted(lambda: layers_of(tf_keras), fit)
    weights, _, (step, history) = fitted(lambda: layers_of(tf_keras), ours)
    save_both(plain, weights)
    return describe(step) | {"history": history.history}


@cases
def checkpoint() -> Any:
    """Saves between two steps, trains on, restores, and repeats the second step."""
    tf.keras.utils.set_random_seed(3)
    with STRATEGY.scope():
        one = Dense(tf.keras.optimizers.SGD(0.1))
    step = tf_libra.optimize("wfbp", **TUNING)(tf.function(whole_step(one.step)))
    for number in range(4):
        step(*data(number))
    saved = tf.train.Checkpoint(variables=one.variables, optimizer=one.optimizer)
    path = saved.write(str(FOLDER / f"checkpoint.{RANK}"))
    step(*data(4))
    first = [v.numpy() for v in one.variables]
    saved.restore(path)
    step(*data(4))
    return [bool((v.numpy() == w).all()) for v, w in zip(one.variables, first, strict=True)]


@cases
def reduces_nothing() -> Any:
    with STRATEGY.scope():
        one = Dense(None)

    def step(inputs: Any, labels: Any) -> Any:
        return one.gradients(inputs, labels)[0]

    tf_libra.optimize("wfbp", progress=False)(tf.function(whole_step(step)))(*data(0))


@cases
def decorated_in_the_replica() -> Any:
    with STRATEGY.scope():
        one = Dense(tf.keras.optimizers.SGD(0.1))
    step = tf_libra.optimize("wfbp", progress=False)(tf.function(one.step))
    STRATEGY.run(step, args=data(0))


@cases
def engine_of_horovod() -> Any:
    with STRATEGY.scope():
        one = Dense(tf.keras.optimizers.SGD(0.1))
    tf_libra.optimize("wfbp", engine="horovod")(tf.function(whole_step(one.step)))(*data(0))


@cases
def pipeline() -> Any:
    with STRATEGY.scope():
        one = Dense(tf.keras.optimizers.SGD(0.1))
    planner = tf_libra.strategies.Spp(num_microbatches=2)
    tf_libra.optimize(planner)(tf.function(whole_step(one.step)))(*data(0))


@cases
def overflow_of_one_worker() -> Any:
    """While plans are tried, and under a plan: all workers skip the step."""
    overflows = (1, 7)
    alone = models.HandWritten("float32", "sgd")
    for number in range(STEPS):
        if number not in overflows:
            alone.step(*models.batch(number, SIZE, "float32"))
    with STRATEGY.scope():
        inner = tf.keras.optimizers.SGD(0.1)
        one = Dense(tf.keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0))
        replica, variables = scaling(one)
    step = tf_libra.optimize("wfbp", **TUNING)(tf.function(whole_step(replica)))
    for number in range(STEPS):
        inputs, labels = data(number)
        step(inputs * (np.inf if RANK == 1 and number in overflows else 1.0), labels)
    plain = {f"{i}": v.numpy() for i, v in enumerate(alone.variables)}
    save_both(plain, {f"{i}": v.numpy() for i, v in enumerate(variables)})
    return describe(step) | scale_of(one.optimizer)


def scale_of(optimizer: Any) -> dict[str, Any]:
    """Returns the final scale of the loss, and the number of updates."""
    return {
        "scale": float(np.asarray(optimizer.dynamic_scale)),
        "updates": int(np.asarray(optimizer.iterations)),
    }


@cases
def overflow_of_one_worker_in_fit() -> Any:
    tf.keras.utils.set_random_seed(3)
    with STRATEGY.scope():
        model = layers_of(keras)
        inner = keras.optimizers.SGD(0.1)
        model.optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0)
        model.compile(model.optimizer, model.loss)
    inputs, labels = models.batch(0, SIZE, "float32", FITTED)
    inputs = inputs.numpy()
    inputs[0] = np.inf  # of one worker, in the first step of each epoch
    joint = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(SIZE * models.SHARD)
    options = joint_batches().options()
    fitting = tf_libra.keras.optimize(model, "wfbp", max_tuning_steps=4)
    model.fit(joint.with_options(options), epochs=EPOCHS, verbose=0)
    weights = {f"{i}": np.asarray(v) for i, v in enumerate(model.trainable_variables)}
    save_both(weights, weights)
    return describe(fitting) | scale_of(model.optimizer)


@cases
def gradient_that_is_no_number() -> Any:
    """The step is undone on every rank."""
    with STRATEGY.scope():
        one = Dense(tf.keras.optimizers.SGD(0.1))
    step = tf_libra.optimize("wfbp", check_numerics="raise", **TUNING)(
        tf.function(whole_step(one.step))
    )
    step(*data(0))
    before = [v.numpy() for v in one.variables]
    inputs, labels = data(1)
    message = ""
    try:
        step(inputs * (np.nan if RANK == 1 else 1.0), labels)
    except FloatingPointError as error:
        message = str(error)
    same = all((v.numpy() == w).all() for v, w in zip(one.variables, before, strict=True))
    step(*data(2))
    return {"message": message, "same": bool(same)}


@cases
def one_worker_gives_up() -> Any:
    """Its error is the others', of the kind that the strategy's own collectives raise."""
    with STRATEGY.scope():
        one = Dense(tf.keras.optimizers.SGD(0.1))
    step = tf_libra.optimize("wfbp", **TUNING)(tf.function(whole_step(one.step)))
    step(*data(0))
    try:
        if RANK == 1:
            step("no", "data")
        step(*data(1))
    except Exception as error:
        barrier()
        return f"{type(error).__name__}: {error}"


cases.run()
