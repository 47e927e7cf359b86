"""Recurrent networks and other loops of the graph."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.real.running import By, Scripts, use_float64

SCRIPTS = Scripts()
WORDS = 12


def weights(*shapes: tuple[int, ...], seed: int = 1, dtype: str = "float64") -> list[tf.Variable]:
    random = np.random.default_rng(seed)
    return [
        tf.Variable((random.normal(size=shape) / 2).astype(dtype), name=f"w{i}")
        for i, shape in enumerate(shapes)
    ]


def descend(variables: Any, gradients: Any, rate: float = 0.1) -> None:
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(rate * tf.convert_to_tensor(gradient))


def series(random: np.random.Generator) -> Any:
    return random.normal(size=(8, 5, 3)), random.normal(size=(8, 2))


@SCRIPTS
def gru_with_initial_state_by_fit(by: By) -> Any:
    """A decoder that starts from what a dense layer makes of the encoder's input."""
    use_float64()
    a, d = keras.Input((4,)), keras.Input((6, 3))
    _, s = layers.GRU(8, return_state=True)(d, initial_state=layers.Dense(8)(a))
    model = keras.Model([a, d], layers.Dense(1)(s))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    random = np.random.default_rng(1)
    x = (random.normal(size=(32, 4)), random.normal(size=(32, 6, 3)))
    by.fit(model, (x, random.normal(size=(32, 1))), batch=4)
    return model.trainable_variables


@SCRIPTS
def seq2seq_lstm(by: By) -> Any:
    """Encoder and decoder at character level; the decoder starts from the encoder's states."""
    use_float64()
    encoder_inputs = keras.Input((None, WORDS))
    _, h, c = layers.LSTM(6, return_state=True)(encoder_inputs)
    decoder_inputs = keras.Input((None, WORDS))
    decoder = layers.LSTM(6, return_sequences=True, return_state=True)
    outputs, _, _ = decoder(decoder_inputs, initial_state=[h, c])
    outputs = layers.Dense(WORDS, activation="softmax")(outputs)
    model = keras.Model([encoder_inputs, decoder_inputs], outputs)
    model.compile(keras.optimizers.RMSprop(0.01, epsilon=1e-3), "categorical_crossentropy")
    random = np.random.default_rng(1)
    eye = np.eye(WORDS)
    x = (eye[random.integers(0, WORDS, (32, 4))], eye[random.integers(0, WORDS, (32, 5))])
    by.fit(model, (x, eye[random.integers(0, WORDS, (32, 5))]), batch=4)
    return model.trainable_variables


@SCRIPTS
def translation_with_attention(by: By) -> Any:
    """The tutorial's encoder, Bahdanau attention and decoder, teacher forcing in a Python loop."""
    use_float64()

    class Attention(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2 = layers.Dense(5), layers.Dense(5)
            self.v = layers.Dense(1)

        def call(self, query: Any, values: Any) -> Any:
            score = self.v(tf.nn.tanh(self.w1(query[:, None]) + self.w2(values)))
            return tf.reduce_sum(tf.nn.softmax(score, axis=1) * values, axis=1)

    embed_in, embed_out = layers.Embedding(WORDS, 4), layers.Embedding(WORDS, 4)
    encoder = layers.GRU(6, return_sequences=True, return_state=True)
    cell, attention, final = layers.GRUCell(6), Attention(), layers.Dense(WORDS)
    optimizer = keras.optimizers.Adam(0.01)

    @by.optimize()
    @tf.function
    def train_step(source: Any, target: Any) -> Any:
        loss = tf.constant(0.0, tf.float64)
        with tf.GradientTape() as tape:
            values, hidden = encoder(embed_in(source))
            for t in range(1, 3):
                context = attention(hidden, values)
                x = tf.concat([context, embed_out(target[:, t - 1])], axis=-1)
                hidden, _ = cell(x, [hidden])
                hidden = hidden[0] if isinstance(hidden, list) else hidden
                loss += tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(target[:, t], final(hidden))
                )
        variables = [
            v
            for layer in (embed_in, embed_out, encoder, cell, attention, final)
            for v in layer.trainable_variables
        ]
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(
            [(tf.convert_to_tensor(g), v) for g, v in zip(gradients, variables, strict=True)]
        )
        return loss

    def sentences(random: np.random.Generator) -> Any:
        return random.integers(0, WORDS, (8, 5)), random.integers(0, WORDS, (8, 3))

    for source, target in by.batches(5, sentences):
        train_step(source, target)
    return [
        v
        for layer in (embed_in, embed_out, encoder, cell, attention, final)
        for v in layer.trainable_variables
    ]


@SCRIPTS
def rnn_by_while_loop(by: By) -> Any:
    """A vanilla RNN: `tf.while_loop` over time."""
    wx, wh, b, wo = variables = weights((3, 6), (6, 6), (6,), (6, 2))

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:

            def body(t: Any, h: Any) -> Any:
                return t + 1, tf.tanh(x[:, t] @ wx + h @ wh + b)

            start = tf.zeros([tf.shape(x)[0], 6], tf.float64)
            _, h = tf.while_loop(lambda t, h: t < tf.shape(x)[1], body, [0, start])
            loss = tf.reduce_mean(tf.square(h @ wo - y))
        descend(variables, tape.gradient(loss, variables))
        return loss

    for x, y in by.batches(5, series):
        train_step(x, y)
    return variables


@SCRIPTS
def learned_initial_state(by: By) -> Any:
    """The initial state of the loop is trained, too, and so are the weights that make it."""
    wx, wh, b, wo, h0, wi = variables = weights((3, 6), (6, 6), (6,), (6, 2), (1, 6), (3, 6))

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            h = tf.tile(h0, [tf.shape(x)[0], 1]) + x[:, 0] @ wi
            for t in tf.range(tf.shape(x)[1]):
                h = tf.tanh(x[:, t] @ wx + h @ wh + b)
            loss = tf.reduce_mean(tf.square(h @ wo - y))
        descend(variables, tape.gradient(loss, variables))
        return loss

    for x, y in by.batches(5, series):
        train_step(x, y)
    return variables


@SCRIPTS
def rnn_by_scan(by: By) -> Any:
    """`tf.scan` over time, all hidden states used."""
    wx, wh, wo, wi = variables = weights((3, 6), (6, 6), (6, 2), (3, 6))

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            states = tf.scan(
                lambda h, xt: tf.tanh(xt @ wx + h @ wh), tf.transpose(x, [1, 0, 2]), x[:, 0] @ wi
            )
            loss = tf.reduce_mean(tf.square(tf.reduce_mean(states, axis=0) @ wo - y))
        descend(variables, tape.gradient(loss, variables))
        return loss

    for x, y in by.batches(5, series):
        train_step(x, y)
    return variables


@SCRIPTS
def rnn_by_python_loop(by: By) -> Any:
    """An LSTM cell called step by step, truncated in the middle by `stop_gradient`."""
    use_float64()
    cell, head = layers.LSTMCell(5), layers.Dense(2)
    cell.build((None, 3))
    head.build((None, 5))
    variables = [*cell.trainable_variables, *head.trainable_variables]
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(variables)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            state = [tf.zeros([len(x), 5], tf.float64), tf.zeros([len(x), 5], tf.float64)]
            for t in range(5):
                if t == 2:
                    state = [tf.stop_gradient(tensor) for tensor in state]
                out, state = cell(x[:, t], state)
            loss = tf.reduce_mean(tf.square(head(out) - y))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    for x, y in by.batches(5, series):
        train_step(x, y)
    return variables


@SCRIPTS
def neural_ode(by: By) -> Any:
    """Euler's method in `tf.while_loop`, between an encoder and a decoder."""
    we, w1, b1, w2, wd = variables = weights((3, 4), (4, 8), (8,), (8, 4), (4, 2))

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            z = x[:, 0] @ we

            def euler(t: Any, z: Any) -> Any:
                return t + 0.25, z + 0.25 * (tf.tanh(z @ w1 + b1) @ w2)

            _, z = tf.while_loop(lambda t, z: t < 1.0, euler, (tf.constant(0.0), z))
            loss = tf.reduce_mean(tf.square(z @ wd - y))
        descend(variables, tape.gradient(loss, variables))
        return loss

    for x, y in by.batches(5, series):
        train_step(x, y)
    return variables


@SCRIPTS
def neural_ode_runge_kutta(by: By) -> Any:
    """Fourth-order steps by Keras layers; the loop has a fixed length."""
    use_float64()
    field = keras.Sequential(
        [keras.Input((3,)), layers.Dense(8, activation="tanh"), layers.Dense(3)]
    )
    head = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    stem = keras.Sequential([keras.Input((3,)), layers.Dense(3)])
    variables = [v for m in (stem, field, head) for v in m.trainable_variables]
    optimizer = keras.optimizers.SGD(0.1)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            z = stem(x[:, 0])
            for _ in tf.range(3):
                k1 = field(z)
                k2 = field(z + 0.1 * k1)
                k3 = field(z + 0.1 * k2)
                z += 0.2 / 6 * (k1 + 2 * k2 + 2 * k3 + field(z + 0.2 * k3))
            loss = tf.reduce_mean(tf.square(head(z) - y))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    for x, y in by.batches(5, series):
        train_step(x, y)
    return variables


@SCRIPTS
def deep_equilibrium(by: By) -> Any:
    """A layer is applied until it changes little, for at most so many times."""
    wx, wz, b, wo = variables = weights((3, 4), (4, 4), (4,), (4, 2))

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            injected = x[:, 0] @ wx + b
            z = tf.tanh(injected)
            for _ in tf.range(6):
                z = tf.tanh(injected + 0.3 * z @ wz)
            loss = tf.reduce_mean(tf.square(z @ wo - y))
        descend(variables, tape.gradient(loss, variables))
        return loss

    for x, y in by.batches(5, series):
        train_step(x, y)
    return variables


@SCRIPTS
def lstm_language_model(by: By) -> Any:
    """Embedding, two stacked LSTMs, next-word prediction; `fit` with several metrics."""
    use_float64()
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(WORDS, 5),
            layers.LSTM(6, return_sequences=True),
            layers.LSTM(6, return_sequences=True),
            layers.Dense(WORDS),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.5),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["sparse_categorical_accuracy"],
    )
    random = np.random.default_rng(4)
    x = random.integers(0, WORDS, (32, 6)).astype("int32")
    by.fit(model, (x, random.integers(0, WORDS, (32, 6))), batch=4, sparse_as_dense=True)
    return model.trainable_variables


@SCRIPTS
def bidirectional_tagger(by: By) -> Any:
    """Bidirectional LSTM with masked words and time-distributed output."""
    use_float64()
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(WORDS, 4, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    model = keras.Model(inputs, layers.TimeDistributed(layers.Dense(3))(x))
    optimizer = keras.optimizers.SGD(0.2)

    @by.optimize(sparse_as_dense=True)
    @tf.function
    def train_step(words: Any, tags: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(words, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tags, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            (tf.convert_to_tensor(g), v)
            for g, v in zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    def sentences(random: np.random.Generator) -> Any:
        words = random.integers(0, WORDS, (8, 5)).astype("int32")
        words[:, 4:] = 0
        return words, random.integers(0, 3, (8, 5))

    for words, tags in by.batches(5, sentences):
        train_step(words, tags)
    return model.trainable_variables


@SCRIPTS
def speech_by_ctc(by: By) -> Any:
    """Utterances of another length in every other batch, without alignment to their letters."""
    model = keras.Sequential([keras.Input((None, 3)), layers.GRU(5, return_sequences=True)])
    w, letters = weights((5, 6), dtype="float32")[0], 3
    variables = [*model.trainable_variables, w]

    @by.optimize()
    @tf.function
    def train_step(spoken: Any, written: Any) -> Any:
        count, length = tf.shape(spoken)[0], tf.shape(spoken)[1]
        with tf.GradientTape() as tape:
            logits = model(spoken, training=True) @ w
            lengths = tf.fill([count], letters), tf.fill([count], length)
            losses = tf.nn.ctc_loss(
                written, logits, *lengths, logits_time_major=False, blank_index=0
            )
            loss = tf.reduce_mean(losses)
        descend(variables, tape.gradient(loss, variables))
        return loss

    random = np.random.default_rng(2)
    for number in range(6):
        spoken = random.normal(size=(8, 7 + 2 * (number % 2), 3)).astype("float32")
        train_step(*by.share(spoken, random.integers(1, 6, (8, letters))))
    return variables


@SCRIPTS
def temporal_convolutions(by: By) -> Any:
    """Dilated causal convolutions over a series, forecast by `fit`."""
    inputs = keras.Input((8, 2))
    x = inputs
    for rate in (1, 2, 4):
        x = layers.Conv1D(4, 2, padding="causal", dilation_rate=rate, activation="relu")(x)
    model = keras.Model(inputs, layers.Dense(1)(x[:, -1]))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), keras.losses.Huber())
    random = np.random.default_rng(8)
    x = random.normal(size=(32, 8, 2)).astype("float32")
    by.fit(model, (x, random.normal(size=(32, 1)).astype("float32")), batch=4)
    return model.trainable_variables
