"""Parts of steps in addition to a forward and a backward pass."""

import functools
import itertools
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.real.running import By, Scripts, use_float64

SCRIPTS = Scripts()
FEATURES, CLASSES = 6, 3


def rows(random: np.random.Generator) -> Any:
    return random.normal(size=(8, FEATURES)), random.integers(0, CLASSES, 8)


def cross_entropy(labels: Any, logits: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


class Network(tf.Module):
    """Three dense layers in double precision."""

    def __init__(self, seed: int = 7, dtype: str = "float64") -> None:
        super().__init__(name="network")
        random = np.random.default_rng(seed)
        widths = (FEATURES, 8, 7, CLASSES)
        self.layers = [
            (
                tf.Variable((random.normal(size=(i, o)) / 2).astype(dtype), name=f"w{n}"),
                tf.Variable(np.zeros(o, dtype), name=f"b{n}"),
            )
            for n, (i, o) in enumerate(itertools.pairwise(widths))
        ]

    def __call__(self, x: Any) -> Any:
        for number, (w, b) in enumerate(self.layers):
            x = x @ w + b
            x = tf.tanh(x) if number + 1 < len(self.layers) else x
        return x


def descend(variables: Any, gradients: Any, rate: float = 0.1) -> None:
    for variable, gradient in zip(variables, gradients, strict=True):
        if gradient is not None:
            variable.assign_sub(rate * tf.convert_to_tensor(gradient))


@SCRIPTS
def gradient_accumulation(by: By) -> Any:
    """Sums over four calls; every fourth applies them."""
    model = Network()
    variables = model.trainable_variables
    sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]
    calls = tf.Variable(0, trainable=False, dtype=tf.int64)
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(variables)

    def apply() -> None:
        optimizer.apply_gradients([(one / 4, v) for one, v in zip(sums, variables, strict=True)])
        for one in sums:
            one.assign(tf.zeros_like(one))

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        for one, gradient in zip(sums, tape.gradient(loss, variables), strict=True):
            one.assign_add(gradient)
        calls.assign_add(1)
        tf.cond(calls % 4 == 0, apply, lambda: None)
        return loss

    for x, y in by.batches(12, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def accumulation_by_keras(by: By) -> Any:
    """`gradient_accumulation_steps` of Keras' optimizers, by `fit`."""
    use_float64()
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8, "tanh"), layers.Dense(CLASSES)]
    )
    model.compile(
        keras.optimizers.Adam(0.01, gradient_accumulation_steps=3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    random = np.random.default_rng(1)
    arrays = random.normal(size=(48, FEATURES)), random.integers(0, CLASSES, 48)
    by.fit(model, arrays, batch=4)
    return model.trainable_variables


@SCRIPTS
def average_of_weights(by: By) -> Any:
    """An exponential moving average, by hand and by Keras."""
    model = Network()
    variables = model.trainable_variables
    averages = [tf.Variable(v, trainable=False) for v in variables]
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8)
    optimizer.build(variables)
    shadow = tf.train.ExponentialMovingAverage(0.9)
    shadow.apply(variables)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        for average, variable in zip(averages, variables, strict=True):
            average.assign_sub((average - variable) * 0.1)
        shadow.apply(variables)
        return loss

    for x, y in by.batches(6, rows):
        train_step(x, y)
    return [*variables, *averages, *(shadow.average(v) for v in variables)]


@SCRIPTS
def clipped_by_global_norm(by: By) -> Any:
    """Clips what is averaged, with weight decay by hand and a decaying rate."""
    model = Network()
    variables = model.trainable_variables
    step = tf.Variable(0.0, trainable=False, dtype=tf.float64)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
            loss += 1e-3 * tf.add_n([tf.nn.l2_loss(v) for v in variables])
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, variables), 0.1)
        rate = 0.5 * tf.cos(0.1 * step.assign_add(1.0))
        descend(variables, gradients, rate)
        return loss, norm

    for x, y in by.batches(6, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def unused_head(by: By) -> Any:
    """One head is not used by this loss: its gradient is None, and the script filters it."""
    model = Network()
    spare = tf.Variable(np.ones((FEATURES, 2)), name="spare")
    variables = [*model.trainable_variables, spare]

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        gradients = tape.gradient(loss, variables)
        descend(variables, gradients)
        return loss

    for x, y in by.batches(6, rows):
        train_step(x, y)
    return model.trainable_variables


@SCRIPTS
def unused_head_as_zero(by: By) -> Any:
    """The same, with `gradient` returning zeros, which Keras' optimizer gets."""
    model = Network()
    spare = tf.Variable(np.ones((FEATURES, 2)), name="spare")
    variables = [*model.trainable_variables, spare]
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(variables)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    for x, y in by.batches(6, rows):
        train_step(x, y)
    return model.trainable_variables


def averaging(by: By) -> type[keras.Model]:
    """A model that `fit` trains by what the script's author would do for Horovod."""

    class Averaging(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = by.average(tape.gradient(loss, self.trainable_variables))
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    return Averaging


@SCRIPTS.like("horovod")
def frozen_then_unfrozen(by: By) -> Any:
    """Transfer learning: the head first, then `compile` again and all of it, by `fit`."""
    use_float64()
    base = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8), layers.BatchNormalization(), layers.ReLU()]
    )
    base.trainable = False
    inputs = keras.Input((FEATURES,))
    model = averaging(by)(inputs, layers.Dense(CLASSES)(base(inputs)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    random = np.random.default_rng(1)
    arrays = random.normal(size=(32, FEATURES)), random.integers(0, CLASSES, 32)
    model.compile(keras.optimizers.Adam(0.01), loss)
    by.fit(model, arrays, batch=4)
    base.trainable = True
    model.compile(keras.optimizers.Adam(0.001), loss)
    by.fit(model, arrays, batch=4)
    return model.trainable_variables


@SCRIPTS
def unfrozen_in_a_loop(by: By) -> Any:
    """A step is traced again with more variables, in a loop of one's own."""
    model = Network()
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    def make(first: int) -> Any:
        variables = [v for layer in model.layers[first:] for v in layer]

        @by.optimize()
        @tf.function
        def train_step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = cross_entropy(y, model(x))
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        return train_step

    for first in (2, 0):
        train_step = make(first)
        for x, y in by.batches(6, rows):
            train_step(x, y)
    return model.trainable_variables


@SCRIPTS
def recomputed_blocks(by: By) -> Any:
    """`tf.recompute_grad` around each of two blocks saves memory."""
    model = Network()
    extra = Network(seed=8)
    (w, b), *_ = extra.layers

    @tf.recompute_grad
    def block(x: Any) -> Any:
        return tf.tanh(x @ w + b)

    head = tf.Variable(np.random.default_rng(2).normal(size=(8, FEATURES)) / 3, name="head")

    @tf.recompute_grad
    def tail(x: Any) -> Any:
        return tf.nn.relu(x @ head)

    variables = [w, b, head, *model.trainable_variables]

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(tail(block(x))))
        descend(variables, tape.gradient(loss, variables))
        return loss

    for x, y in by.batches(6, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def recomputed_keras_layers(by: By) -> Any:
    """Keras layers inside of `tf.recompute_grad`."""
    use_float64()
    inner = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(8, "tanh"), layers.Dense(8)])
    outer = keras.Sequential([keras.Input((8,)), layers.Dense(CLASSES)])
    recomputed = tf.recompute_grad(lambda x: inner(x))
    variables = inner.trainable_variables + outer.trainable_variables
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(variables)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, outer(recomputed(x)))
        gradients = tape.gradient(loss, variables)
        # TensorFlow by itself may update a layer of Keras before backward has read it once more.
        with tf.control_dependencies(gradients):
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    for x, y in by.batches(6, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def custom_gradient(by: By) -> Any:
    """`tf.custom_gradient` with a variable inside, whose gradient it computes by itself."""
    model = Network()
    scale = tf.Variable(np.full((FEATURES,), 0.7), name="scale")

    @tf.custom_gradient
    def scaled(x: Any) -> Any:
        def grad(upstream: Any, variables: Any = ()) -> Any:
            return upstream * scale, [tf.reduce_sum(upstream * x, axis=0)]

        return x * scale, grad

    variables = [scale, *model.trainable_variables]

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(scaled(x)))
        descend(variables, tape.gradient(loss, variables))
        return loss

    for x, y in by.batches(6, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def step_under_a_condition(by: By) -> Any:
    """Every third step trains with an auxiliary loss, by `tf.cond` around the whole gradient."""
    model = Network()
    variables = model.trainable_variables

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any, number: Any) -> Any:
        def gradients_with(weight: float) -> Any:
            with tf.GradientTape() as tape:
                out = model(x)
                loss = cross_entropy(y, out) + weight * tf.reduce_mean(out**2)
            return tape.gradient(loss, variables)

        chosen = tf.cond(number % 3 == 0, lambda: gradients_with(0.1), lambda: gradients_with(0.0))
        descend(variables, chosen)

    for number, (x, y) in enumerate(by.batches(9, rows)):
        train_step(x, y, tf.constant(number))
    return variables


@SCRIPTS
def auxiliary_head_under_a_condition(by: By) -> Any:
    """The trunk's gradients are always averaged, those of a head in a branch only."""
    model = Network()
    variables = model.trainable_variables
    head = tf.Variable(np.random.default_rng(3).normal(size=(CLASSES, 2)), name="head")

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any, number: Any) -> Any:
        with tf.GradientTape() as tape:
            out = model(x)
            loss = cross_entropy(y, out)
        descend(variables, tape.gradient(loss, variables))
        if number % 2 == 0:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.stop_gradient(out) @ head) ** 2)
            descend([head], tape.gradient(loss, [head]))
        return loss

    for number, (x, y) in enumerate(by.batches(9, rows)):
        train_step(x, y, tf.constant(number))
    return [*variables, head]


def as_dataset(by: By, steps: int) -> tf.data.Dataset:
    shares = [tf.stack(parts) for parts in zip(*by.batches(steps, rows), strict=True)]
    return tf.data.Dataset.from_tensor_slices(tuple(shares))


@SCRIPTS
def loop_over_a_dataset_in_the_step(by: By) -> Any:
    """`for x, y in ds` inside of the decorated function: a whole epoch is one call."""
    model = Network()
    variables = model.trainable_variables
    dataset = as_dataset(by, 5)

    @by.optimize()
    @tf.function
    def train_epoch(dataset: Any) -> Any:
        loss = tf.constant(0.0, tf.float64)
        for x, y in dataset:
            with tf.GradientTape() as tape:
                loss = cross_entropy(y, model(x))
            descend(variables, tape.gradient(loss, variables))
        return loss

    for _ in range(6):
        train_epoch(dataset)
    return variables


@SCRIPTS
def iterator_in_the_step(by: By) -> Any:
    """`next(iterator)` inside of the step."""
    model = Network()
    variables = model.trainable_variables
    iterator = iter(as_dataset(by, 7))

    @by.optimize()
    @tf.function
    def train_step(iterator: Any) -> Any:
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        descend(variables, tape.gradient(loss, variables))
        return loss

    for _ in range(7):
        train_step(iterator)
    return variables


@SCRIPTS
def several_steps_in_one_call(by: By) -> Any:
    """`for _ in tf.range(n): step(next(iterator))`, as on TPUs."""
    model = Network()
    variables = model.trainable_variables
    iterator = iter(as_dataset(by, 18))

    @by.optimize()
    @tf.function
    def train_steps(iterator: Any, count: Any) -> None:
        for _ in tf.range(count):
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                loss = cross_entropy(y, model(x))
            descend(variables, tape.gradient(loss, variables))

    for _ in range(6):
        train_steps(iterator, tf.constant(3))
    return variables


@SCRIPTS
def steps_per_execution(by: By) -> Any:
    """Keras puts four steps into one graph."""
    use_float64()
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8, "tanh"), layers.Dense(CLASSES)]
    )
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=4,
    )
    random = np.random.default_rng(1)
    arrays = random.normal(size=(80, FEATURES)), random.integers(0, CLASSES, 80)
    by.fit(model, arrays, batch=4, epochs=2)
    return model.trainable_variables


@SCRIPTS
def a_thousand_small_variables(by: By) -> Any:
    """One bias per time and place, say."""
    random = np.random.default_rng(1)
    variables = [tf.Variable(random.normal(size=4), name=f"bias_{i}") for i in range(1000)]

    @by.optimize()
    @tf.function(autograph=False)
    def train_step(x: Any) -> Any:
        mean = tf.reduce_mean(x, axis=0)
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.nn.l2_loss(v - mean) for v in variables])
        descend(variables, tape.gradient(loss, variables))
        return loss

    for x in by.batches(6, lambda random: random.normal(size=(8, 4))):
        train_step(x)
    return variables


@SCRIPTS.like("horovod")
def metrics_in_the_step(by: By) -> Any:
    """Metrics are updated in the step, so that each rank has its own; decorated twice."""
    use_float64()
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8, "tanh"), layers.Dense(CLASSES)]
    )
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    train_loss = keras.metrics.Mean()
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            out = model(x, training=True)
            loss = cross_entropy(y, out)
        gradients = by.average(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_loss(loss)
        accuracy(y, out)

    for number, (x, y) in enumerate(by.batches(10, rows)):
        if number % 5 == 0:
            train_step = by.optimize()(step)
        train_step(x, y)
    assert 0 <= float(accuracy.result()) <= 1
    for one in by.steps:  # nothing else of the step differs
        one.optimized.check_variables()
    return model.trainable_variables


@SCRIPTS.like("horovod")
def batch_normalization_by_fit(by: By) -> Any:
    """Normalization and metrics under `fit`, decorated twice; then a second `compile`."""
    use_float64()
    inputs = keras.Input((FEATURES,))
    x = layers.BatchNormalization()(layers.Dense(8, use_bias=False)(inputs))
    model = averaging(by)(inputs, layers.Dense(CLASSES)(layers.ReLU()(x)))
    random = np.random.default_rng(1)
    arrays = random.normal(size=(32, FEATURES)), random.integers(0, CLASSES, 32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for rate in (0.1, 0.05):
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss)
        by.fit(model, arrays, batch=4)
    return model.trainable_variables


@SCRIPTS
def callable_object(by: By) -> Any:
    """The step is an object with `__call__`."""

    class Trainer:
        def __init__(self) -> None:
            self.model = Network()
            self.optimizer = keras.optimizers.Adam(0.01)
            self.optimizer.build(self.model.trainable_variables)

        def __call__(self, x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = cross_entropy(y, self.model(x))
            variables = self.model.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

    trainer = Trainer()
    step = by.optimize()(trainer)
    for x, y in by.batches(6, rows):
        step(x, y)
    return trainer.model.trainable_variables


@SCRIPTS
def partial_function(by: By) -> Any:
    """`functools.partial` binds model and optimizer."""

    def train_step(model: Any, rate: float, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        descend(model.trainable_variables, tape.gradient(loss, model.trainable_variables), rate)
        return loss

    model = Network()
    step = by.optimize()(functools.partial(train_step, model, 0.1))
    for x, y in by.batches(6, rows):
        step(x, y)
    return model.trainable_variables


@SCRIPTS
def method_of_a_class(by: By) -> Any:
    """The decorator stands over a method; each object's optimizer is built in its first step."""

    class Trainer:
        def __init__(self, seed: int) -> None:
            self.model = Network(seed)
            self.optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

        @by.optimize()
        @tf.function
        def train_step(self, x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = cross_entropy(y, self.model(x))
            variables = self.model.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

    trainers = [Trainer(seed=7), Trainer(seed=8)]
    for x, y in by.batches(6, rows):
        for trainer in trainers:
            trainer.train_step(x, y)
    return [one for trainer in trainers for one in trainer.model.trainable_variables]


@SCRIPTS
def variables_as_arguments(by: By) -> Any:
    """The variables are arguments of the step, and start unequal: rank 0's count."""
    model = Network(seed=7 + by.rank if by.ours else 7)
    variables = list(model.trainable_variables)

    @by.optimize(broadcast_variables=True)
    @tf.function
    def train_step(variables: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.tanh(x @ variables[0] + variables[1])
            hidden = tf.tanh(hidden @ variables[2] + variables[3])
            loss = cross_entropy(y, hidden @ variables[4] + variables[5])
        descend(variables, tape.gradient(loss, variables))
        return loss

    for x, y in by.batches(6, rows):
        train_step(variables, x, y)
    return variables


@SCRIPTS
def models_of_a_k_fold(by: By) -> Any:
    """The model is an argument; the second one's variables have the names of the first one's."""
    optimizers = [keras.optimizers.SGD(0.1, momentum=0.9) for _ in range(3)]

    @by.optimize(broadcast_variables=True)
    @tf.function
    def train_step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    models = []
    for fold in range(3):
        model = Network(seed=fold + (10 * by.rank if by.ours else 0))
        optimizers[fold].build(model.trainable_variables)
        for x, y in by.batches(6, rows):
            train_step(model, optimizers[fold], x, y)
        models.append(model)
    return [v for model in models for v in model.trainable_variables]


@SCRIPTS
def starts_unequal(by: By) -> Any:
    """No seed is set: by default every rank starts from rank 0's weights, and one line says so."""
    use_float64()
    keras.utils.set_random_seed(1 + (by.rank if by.ours else 0))
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8, "tanh"), layers.Dense(CLASSES)]
    )
    optimizer = keras.optimizers.Adam(0.01)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for x, y in by.batches(6, rows):
        train_step(x, y)
    return model.trainable_variables


@SCRIPTS
def data_in_a_variable(by: By) -> Any:
    """A rank keeps its own share of the data in a variable that is not trained."""
    model = Network()
    x, y = by.share(*rows(np.random.default_rng(5)))
    features = tf.Variable(x, trainable=False, name="features")
    labels = tf.Variable(y, trainable=False, name="labels")

    @by.optimize(broadcast_variables=True)
    @tf.function
    def train_step() -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(labels, model(features))
        descend(model.trainable_variables, tape.gradient(loss, model.trainable_variables))
        return loss

    for _ in range(6):
        train_step()
    return model.trainable_variables


@SCRIPTS
def train_on_batch(by: By) -> Any:
    """Past the step in which the plan is settled, with a scheduler in between."""
    use_float64()
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8, "tanh"), layers.Dense(CLASSES)]
    )
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    by.remember(model.trainable_variables)
    fitting = by.keras(model)
    for number, (x, y) in enumerate(by.batches(14, rows)):
        if number == 9:
            model.optimizer.learning_rate = 0.05
        if fitting is not None:
            fitting.count()
        model.train_on_batch(x, y)
    return model.trainable_variables


@SCRIPTS
def float16_by_hand(by: By) -> Any:
    """Master weights in float32, computation in float16, a constant scale."""
    model = Network(dtype="float32")
    variables = model.trainable_variables

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.cast(x, tf.float16)
            for number, (w, b) in enumerate(model.layers):
                hidden = hidden @ tf.cast(w, tf.float16) + tf.cast(b, tf.float16)
                hidden = tf.tanh(hidden) if number < 2 else hidden
            scaled = cross_entropy(y, tf.cast(hidden, tf.float32)) * 128.0
        descend(variables, [g / 128.0 for g in tape.gradient(scaled, variables)])
        return scaled

    for x, y in by.batches(6, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def multi_task(by: By) -> Any:
    """A persistent tape, a gradient per task, projected where they disagree."""
    model = Network()
    variables = model.trainable_variables

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            out = model(x)
            first, second = cross_entropy(y, out), tf.reduce_mean(out**2)
        ours = tape.gradient(first, variables)
        theirs = tape.gradient(second, variables)
        dot = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(ours, theirs, strict=True)])
        size = tf.add_n([tf.reduce_sum(b * b) for b in theirs])
        part = tf.minimum(dot / size, 0.0)
        descend(variables, [a - part * b + 0.1 * b for a, b in zip(ours, theirs, strict=True)])
        return first

    for x, y in by.batches(6, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def masked_update(by: By) -> Any:
    """A tape that watches only passed variables; gradients are masked, as for pruned weights."""
    model = Network()
    variables = model.trainable_variables
    masks = [np.random.default_rng(i).integers(0, 2, v.shape) for i, v in enumerate(variables)]
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(variables)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = cross_entropy(y, model(x))
        gradients = tape.gradient(loss, variables)
        masked = [g * m for g, m in zip(gradients, masks, strict=True)]
        optimizer.apply(masked, variables)
        return loss

    for x, y in by.batches(6, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def weights_that_were_read(by: By) -> Any:
    """Sharpness-aware, in the functional manner: gradients of what was read of the weights."""
    model = Network()
    variables = [one for layer in model.layers for one in layer]

    def slopes(values: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(values)
            hidden = tf.tanh(x @ values[0] + values[1])
            hidden = tf.tanh(hidden @ values[2] + values[3])
            loss = cross_entropy(y, hidden @ values[4] + values[5])
        return tape.gradient(loss, values)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> None:
        values = [variable.read_value() for variable in variables]
        first = slopes(values, x, y)
        size = tf.linalg.global_norm(first)
        near = [one + 0.1 * slope / size for one, slope in zip(values, first, strict=True)]
        descend(variables, slopes(near, x, y))

    for x, y in by.batches(6, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def complex_weights(by: By) -> Any:
    """Complex weights, and a complex table of which rows are looked up."""
    random = np.random.default_rng(1)
    w = tf.Variable(tf.complex(*random.normal(size=(2, FEATURES, 5))), name="w")
    table = tf.Variable(tf.complex(*random.normal(size=(2, CLASSES, 5))), name="table")
    head = tf.Variable(random.normal(size=(5, CLASSES)), name="head")
    variables = [w, table, head]

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            waves = tf.cast(x, tf.complex128) @ w + tf.gather(table, tf.cast(x[:, 0] > 0, tf.int32))
            loss = cross_entropy(y, tf.abs(waves) @ head)
        descend(variables, tape.gradient(loss, variables))
        return loss

    for x, y in by.batches(6, rows):
        train_step(x, y)
    return [part(one) for one in (w, table) for part in (tf.math.real, tf.math.imag)] + [head]
