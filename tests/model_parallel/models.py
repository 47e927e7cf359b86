"""Models for tests of pipelines and bursts, each with its step for one device."""

from dataclasses import replace
from typing import Any

import tensorflow as tf

from tests.model_parallel.plain_models import deep, forked, permuted, tied
from tests.model_parallel.stateful_models import (
    dropping,
    dropping_twice,
    generating,
    iterated,
    normalized,
    running_mean,
    spectral,
)
from tests.model_parallel.trained_model import Trained, cross_entropy, from_keras
from tf_libra.model_parallel.capture.trace_hooks import boundary

keras = tf.keras


def convolutional() -> Trained:
    """Convolutions with regularized weights; all updates depend on the norm of all gradients."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input([8, 8, 1]),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Conv2D(8, 3, activation="relu", kernel_regularizer="l2"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(16, activation="relu", kernel_regularizer="l2"),
            layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5)
    norms = keras.metrics.Mean("norms")
    trained = from_keras(
        model, optimizer, metric=keras.metrics.SparseCategoricalAccuracy(), norms=norms
    )
    return replace(trained, state=(*trained.state, *norms.variables))


def conditional() -> Trained:
    """A model updated every second step, if gradients are finite, with averaged weights.

    Its loss is scaled, by more and more.
    """
    layers = keras.layers
    dense = [layers.Dense(16, activation="relu") for _ in range(2)]
    model = keras.Sequential([layers.Input([8, 8, 1]), layers.Flatten(), *dense, layers.Dense(10)])
    every = {"gradient_accumulation_steps": 2, "use_ema": True, "ema_overwrite_frequency": 3}
    inner = keras.optimizers.Adam(1e-2, global_clipnorm=0.5, ema_momentum=0.5, **every)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, 8.0, dynamic_growth_steps=2)
    return from_keras(model, optimizer, scaled=optimizer.scale_loss)


def embedded() -> Trained:
    """A model with an embedding, in which examples contain words several times."""
    layers = keras.layers
    table, dense = layers.Embedding(12, 6), [layers.Dense(16, activation="relu") for _ in range(2)]
    model = keras.Sequential([layers.Input([8]), table, layers.Flatten(), *dense, layers.Dense(10)])
    trained = from_keras(model, keras.optimizers.Adam(1e-2))

    def call(images: Any) -> Any:
        return model(tf.cast(tf.abs(images[:, :, 0, 0]) * 6, tf.int32) % 12)

    return replace(trained, call=call)


def sparsely_embedded() -> Trained:
    """Returns `embedded`, whose process alone applies the rows of sparse gradients, too."""
    return replace(embedded(), keeps_rows=True)


def branching() -> Trained:
    """A functional model whose branches join, one of them many layers later."""
    layers = keras.layers
    inputs = layers.Input([8, 8, 1])
    first = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    left = layers.Conv2D(4, 1, padding="same")(first)
    right = layers.Conv2D(4, 3, padding="same", activation="relu")(first)
    joined = layers.Concatenate()([left, right])
    late = layers.Conv2D(4, 3, padding="same")(joined)
    added = layers.Add()([late, first])
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(added))
    return from_keras(keras.Model(inputs, outputs), keras.optimizers.AdamW(1e-2))


def transformer(num_blocks: int = 2) -> Trained:
    """Transformer blocks over rows of an image, in plain code with boundaries."""
    layers = keras.layers
    width = 8
    embed = layers.Dense(width)
    blocks = [
        (
            layers.MultiHeadAttention(2, 4),
            layers.LayerNormalization(),
            layers.Dense(16, activation="gelu"),
            layers.Dense(width),
            layers.LayerNormalization(),
        )
        for _ in range(num_blocks)
    ]
    head = layers.Dense(10)
    position = tf.Variable(tf.random.stateless_normal([8, width], [1, 2]), name="position")

    def call(images: Any) -> Any:
        x = boundary(embed(images[..., 0]) + position)
        for attention, normalize, wide, narrow, normalize_again in blocks:
            x = normalize(x + attention(x, x))
            x = boundary(normalize_again(x + narrow(wide(x))))
        return head(tf.reduce_mean(x, 1))

    call(tf.zeros([1, 8, 8, 1]))
    parts = [embed, *(layer for block in blocks for layer in block), head]
    variables = [position, *(v for part in parts for v in part.trainable_variables)]
    # Not Adam: keys have a bias without effect, and it would follow what rounding leaves of that.
    return Trained(call, cross_entropy, variables, keras.optimizers.SGD(0.1))


class _Counts:
    """Metrics of odd labels: sums, and ratios with different denominators."""

    def __init__(self) -> None:
        metrics = keras.metrics
        self._metrics = [metrics.Precision(), metrics.Recall(), metrics.AUC(num_thresholds=20)]
        self._mean = metrics.Mean()
        self._error = metrics.RootMeanSquaredError()
        self._sum = metrics.Sum()
        self._labels = metrics.Sum(dtype="int32")

    def update_state(self, labels: Any, logits: Any) -> None:
        odd, guess = labels % 2, tf.sigmoid(4 * logits[:, 1])
        for metric in self._metrics:
            metric.update_state(odd, guess)
        self._mean.update_state(guess, sample_weight=tf.cast(labels, tf.float32))
        self._error.update_state(odd, guess)
        self._sum.update_state(guess)
        self._labels.update_state(labels)

    def result(self) -> Any:
        rest = self._mean, self._error, self._sum
        whole = tf.cast(self._labels.result(), tf.float32)
        return tf.stack([*(metric.result() for metric in (*self._metrics, *rest)), whole])


def counted() -> Trained:
    """A model with metrics that are sums, and ratios with different denominators."""
    return replace(deep(4), metric=_Counts())


def greatest() -> Trained:
    """A model with a metric that is no sum: the greatest label."""

    class Greatest(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="greatest")
            self.value = self.add_variable([], "zeros", name="value")

        def update_state(self, labels: Any, logits: Any) -> None:
            self.value.assign(tf.maximum(self.value, tf.cast(tf.reduce_max(labels), tf.float32)))

        def result(self) -> Any:
            return self.value + 0.0

    return replace(deep(4), metric=Greatest())


def mixed() -> Trained:
    """A model with a value that depends both on a metric and on a microbatch."""

    class Mixed(keras.metrics.SparseCategoricalAccuracy):
        def update_state(self, labels: Any, logits: Any) -> None:
            super().update_state(labels, logits)
            self.last = tf.reduce_mean(logits)

        def result(self) -> Any:
            return super().result() + self.last

    return replace(deep(4), metric=Mixed("mixed"))


def checked() -> Trained:
    """A model that checks its loss, and the state and the result of its metric."""

    class Checked(keras.metrics.SparseCategoricalAccuracy):
        def result(self) -> Any:
            for variable in self.variables:
                tf.debugging.check_numerics(tf.cast(variable, tf.float32), "a state")
            return tf.debugging.check_numerics(super().result(), "a result")

    trained = replace(deep(4), metric=Checked("checked"))
    loss = trained.loss
    return replace(trained, loss=lambda *args: tf.debugging.check_numerics(loss(*args), "the loss"))


def recurrent() -> Trained:
    """A model with loops, to which their gradients add inputs after their creation."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input([8, 8, 1]),
            layers.Reshape([8, 8]),
            layers.LSTM(6, return_sequences=True),
            layers.Bidirectional(layers.GRU(4)),
            layers.Dense(10),
        ]
    )
    # They have seeds for dropout, of which there is none.
    return replace(from_keras(model, keras.optimizers.SGD(0.1)), state=())


class _TwoOptimizers:
    """Two optimizers: one for the first half of the variables, another for the rest."""

    def __init__(self) -> None:
        self._optimizers = (keras.optimizers.SGD(0.1), keras.optimizers.Adam(1e-2))

    def _halves(self, every: Any) -> list[list[Any]]:
        every = list(every)
        return [every[: len(every) // 2], every[len(every) // 2 :]]

    def build(self, variables: Any) -> None:
        for optimizer, half in zip(self._optimizers, self._halves(variables), strict=True):
            optimizer.build(half)

    def apply_gradients(self, pairs: Any) -> None:
        for optimizer, half in zip(self._optimizers, self._halves(pairs), strict=True):
            optimizer.apply_gradients(half)

    @property
    def variables(self) -> list[Any]:
        return [variable for optimizer in self._optimizers for variable in optimizer.variables]

    @property
    def iterations(self) -> Any:
        return self._optimizers[0].iterations


def two_optimizers() -> Trained:
    """A model with one loss, whose gradients two optimizers apply."""
    layers = keras.layers
    dense = [layers.Dense(16, activation="relu") for _ in range(3)]
    model = keras.Sequential([layers.Input([8, 8, 1]), layers.Flatten(), *dense, layers.Dense(10)])
    return from_keras(model, _TwoOptimizers())


def calling() -> Trained:
    """A subclassed model with nested layers, a `tf.function` with a weight, and complex numbers."""
    layers = keras.layers
    dense = [layers.Dense(16, activation="tanh") for _ in range(2)]
    inner = keras.Sequential([layers.Input([8, 8, 1]), layers.Flatten(), *dense])

    class Outer(keras.Model):
        def call(self, images: Any) -> Any:
            return inner(images)

    outer = Outer()
    called, head = (
        tf.Variable(tf.random.stateless_normal([16, width], [width, 1]) / 4, name=f"called{width}")
        for width in (16, 10)
    )

    @tf.function
    def block(x: Any) -> Any:
        return tf.tanh(x @ called)

    def call(images: Any) -> Any:
        x = boundary(block(outer(images)))
        waves = boundary(tf.signal.fft(tf.cast(x, tf.complex64)) / 4)
        return (tf.math.real(waves) + tf.math.imag(waves)) @ head

    variables = [*inner.trainable_variables, called, head]
    return Trained(call, cross_entropy, variables, keras.optimizers.SGD(0.1))


def shallow() -> Trained:
    """A model of one layer."""
    layers = keras.layers
    model = keras.Sequential([layers.Input([8, 8, 1]), layers.Flatten(), layers.Dense(10)])
    return from_keras(model, keras.optimizers.SGD(0.1))


def vgg() -> Trained:
    """Blocks of convolutions with pooling between, and wide dense layers."""
    layers = keras.layers
    model = keras.Sequential([layers.Input([8, 8, 1])])
    for width in (4, 8):
        for _ in range(2):
            model.add(layers.Conv2D(width, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    for _ in range(2):
        model.add(layers.Dense(32, activation="relu"))
    model.add(layers.Dense(10))
    metric = keras.metrics.SparseCategoricalAccuracy()
    return from_keras(model, keras.optimizers.SGD(0.05, momentum=0.9), metric=metric)


def inception() -> Trained:
    """Two blocks of four branches, of which one begins with pooling, and a classifier."""
    layers = keras.layers

    def convolved(x: Any, width: int, size: int) -> Any:
        return layers.Conv2D(width, size, padding="same", activation="relu")(x)

    inputs = layers.Input([8, 8, 1])
    x = convolved(inputs, 4, 3)
    for _ in range(2):
        branches = [
            convolved(x, 2, 1),
            convolved(convolved(x, 2, 1), 3, 5),
            convolved(convolved(convolved(x, 2, 1), 3, 3), 3, 3),
            convolved(layers.AveragePooling2D(3, 1, padding="same")(x), 2, 1),
        ]
        x = layers.Concatenate()(branches)
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return from_keras(keras.Model(inputs, outputs), keras.optimizers.SGD(0.1))


class _Labels(keras.metrics.Sum):
    """A metric: the sum of labels."""

    def update_state(self, labels: Any, logits: Any) -> None:
        super().update_state(labels)


def mlp() -> Trained:
    """A small model with a metric that is a sum."""
    return replace(deep(5), metric=_Labels())


COUNTED = {make.__name__: make for make in (counted, mixed, greatest)}

BURSTS = {make.__name__: make for make in (mlp, vgg, inception, forked)}

EVERY = {
    make.__name__: make
    for make in (
        convolutional, normalized, dropping, branching, transformer, tied, recurrent, deep,
        two_optimizers, generating, conditional, embedded, dropping_twice, iterated, running_mean,
        spectral, calling, permuted,
    )
}  # fmt: skip
