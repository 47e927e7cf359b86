"""Scripts with unusual sets of variables or forms of the decorated function."""

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.real.dense_network import CLASSES, FEATURES, Network, cross_entropy, descend, rows
from tests.real.running import By, Scripts, use_float64

SCRIPTS = Scripts()


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
        for x, y in by.batches(5, rows):
            train_step(x, y)
    return model.trainable_variables


@SCRIPTS
def many_small_variables(by: By) -> Any:
    """One bias per time and place, say."""
    random = np.random.default_rng(1)
    variables = [tf.Variable(random.normal(size=4), name=f"bias_{i}") for i in range(120)]

    @by.optimize()
    @tf.function(autograph=False)
    def train_step(x: Any) -> Any:
        mean = tf.reduce_mean(x, axis=0)
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.nn.l2_loss(v - mean) for v in variables])
        descend(variables, tape.gradient(loss, variables))
        return loss

    for x in by.batches(5, lambda random: random.normal(size=(8, 4))):
        train_step(x)
    return variables


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
    for x, y in by.batches(5, rows):
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
    for x, y in by.batches(5, rows):
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
    for x, y in by.batches(5, rows):
        for trainer in trainers:
            trainer.train_step(x, y)
    return [
        trainable_variable
        for trainer in trainers
        for trainable_variable in trainer.model.trainable_variables
    ]


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

    for x, y in by.batches(5, rows):
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
        for x, y in by.batches(5, rows):
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

    for x, y in by.batches(5, rows):
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
def weights_that_were_read(by: By) -> Any:
    """Sharpness-aware, in the functional manner: gradients of what was read of the weights."""
    model = Network()
    variables = [variable for layer in model.layers for variable in layer]

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
        near = [value + 0.1 * slope / size for value, slope in zip(values, first, strict=True)]
        descend(variables, slopes(near, x, y))

    for x, y in by.batches(5, rows):
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

    for x, y in by.batches(5, rows):
        train_step(x, y)
    return [part(tensor) for tensor in (w, table) for part in (tf.math.real, tf.math.imag)] + [head]
