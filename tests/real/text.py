"""Language models, word vectors, transformers and mixtures of experts."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.real.running import By, Scripts, use_float64

SCRIPTS = Scripts()
WORDS, WIDTH, LENGTH = 16, 8, 6


def cross_entropy(labels: Any, logits: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def dense(gradients: Any) -> list[Any]:
    """Adam treats slices otherwise than dense gradients."""
    return [None if g is None else tf.convert_to_tensor(g) for g in gradients]


class EncoderLayer(keras.layers.Layer):
    """Attention and a feed-forward network, each with a residual and a norm."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.attention = layers.MultiHeadAttention(2, WIDTH // 2)
        self.forward = keras.Sequential([layers.Dense(12, activation="gelu"), layers.Dense(WIDTH)])
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]

    def call(self, x: Any) -> Any:
        x = self.norms[0](x + self.attention(x, x, use_causal_mask=self.causal))
        return self.norms[1](x + self.forward(x))


class Embeddings(keras.layers.Layer):
    """Words and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = layers.Embedding(WORDS, WIDTH), layers.Embedding(LENGTH, WIDTH)

    def call(self, words: Any) -> Any:
        return self.words(words) + self.positions(tf.range(tf.shape(words)[1]))


def sentences(random: np.random.Generator) -> Any:
    return random.integers(0, WORDS, (8, LENGTH)), random.integers(0, WORDS, (8, LENGTH))


@SCRIPTS
def transformer_classifier(by: By) -> Any:
    """Text classification with a transformer block, by `fit`."""
    use_float64()
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = EncoderLayer()(Embeddings()(inputs))
    x = layers.Dense(6, activation="relu")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, layers.Dense(2)(x))
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    random = np.random.default_rng(1)
    words = random.integers(0, WORDS, (32, LENGTH)).astype("int32")
    by.fit(model, (words, random.integers(0, 2, 32)), batch=4)
    return model.trainable_variables


class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """The schedule of the transformer's authors."""

    def __call__(self, step: Any) -> Any:
        step = tf.cast(step, tf.float64)
        return (
            0.1
            * tf.math.rsqrt(tf.cast(WIDTH, tf.float64))
            * tf.minimum(tf.math.rsqrt(step + 1.0), (step + 1.0) * 4.0**-1.5)
        )


@SCRIPTS
def causal_language_model(by: By) -> Any:
    """A small GPT with weights tied between embedding and output: slices and dense together."""
    use_float64()
    embeddings, blocks = Embeddings(), [EncoderLayer(causal=True)]
    optimizer = keras.optimizers.Adam(InverseSquareRoot(), beta_2=0.98)
    norm = layers.LayerNormalization()

    def logits(words: Any) -> Any:
        x = embeddings(words)
        for block in blocks:
            x = block(x)
        return tf.matmul(
            norm(x), tf.convert_to_tensor(embeddings.words.embeddings), transpose_b=True
        )

    logits(tf.zeros([1, LENGTH], tf.int32))
    variables = [v for layer in (embeddings, *blocks, norm) for v in layer.trainable_variables]
    optimizer.build(variables)

    @by.optimize()
    @tf.function
    def train_step(words: Any, following: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(following, logits(words))
        gradients = dense(tape.gradient(loss, variables))
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    for words, following in by.batches(5, sentences):
        train_step(words, following)
    return variables


@SCRIPTS
def tied_embeddings_by_hand(by: By) -> Any:
    """One table looked up and multiplied with; its gradient has slices and a dense part."""
    table = tf.Variable(np.random.default_rng(1).normal(size=(WORDS, 5)), name="table")
    bias = tf.Variable(np.zeros(WORDS), name="bias")
    hidden = tf.Variable(np.random.default_rng(2).normal(size=(5, 5)), name="hidden")
    variables = [table, hidden, bias]

    @by.optimize()
    @tf.function
    def train_step(words: Any, following: Any) -> Any:
        with tf.GradientTape() as tape:
            x = tf.tanh(tf.nn.embedding_lookup(table, words) @ hidden)
            loss = cross_entropy(following, tf.einsum("btd,wd->btw", x, table) + bias)
        for v, g in zip(variables, tape.gradient(loss, variables), strict=True):
            v.assign_sub(0.1 * tf.convert_to_tensor(g))
        return loss

    for words, following in by.batches(5, sentences):
        train_step(words, following)
    return variables


@SCRIPTS
def masked_language_model(by: By) -> Any:
    """In the manner of keras-hub: the backbone has a pooler, which masked words do not use."""
    use_float64()
    words = keras.Input((LENGTH,), dtype="int32")
    embeddings = Embeddings()
    sequence = EncoderLayer()(embeddings(words))
    pooled = layers.Dense(WIDTH, activation="tanh", name="pooled_dense")(sequence[:, 0])
    backbone = keras.Model(words, {"sequence": sequence, "pooled": pooled})

    class MaskedHead(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(WIDTH, activation="gelu")
            self.norm = layers.LayerNormalization()

        def build(self, x_shape: Any, positions_shape: Any = None) -> None:
            self.bias = self.add_weight(shape=(WORDS,), initializer="zeros", name="output_bias")

        def call(self, x: Any, positions: Any) -> Any:
            x = self.norm(self.dense(tf.gather(x, positions, axis=1, batch_dims=1)))
            table = tf.convert_to_tensor(embeddings.words.embeddings)
            return tf.matmul(x, table, transpose_b=True) + self.bias

    class MaskedLM(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = backbone, MaskedHead()

        def call(self, inputs: Any) -> Any:
            return self.head(self.backbone(inputs["words"])["sequence"], inputs["positions"])

    model = MaskedLM()
    random = np.random.default_rng(1)
    x = {
        "words": random.integers(0, WORDS, (32, LENGTH)).astype("int32"),
        "positions": np.tile(np.array([[1, 4]], "int32"), [32, 1]),
    }
    model({key: value[:1] for key, value in x.items()})
    model.compile(
        keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    by.fit(model, (x, random.integers(0, WORDS, (32, 2))), batch=4)
    return [v for v in model.trainable_variables if "pooled" not in v.path]


@SCRIPTS
def word_vectors(by: By) -> Any:
    """Skip-gram with negative sampling; slices on both sides, gathered."""

    class Word2Vec(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            random = np.random.default_rng(3)
            self.target = tf.Variable(random.normal(size=(WORDS, 4)), name="target")
            self.context = tf.Variable(random.normal(size=(WORDS, 4)), name="context")
            self.bias = tf.Variable(np.zeros(WORDS), name="bias")

        def __call__(self, target: Any, context: Any) -> Any:
            dots = tf.einsum(
                "be,bce->bc",
                tf.nn.embedding_lookup(self.target, target),
                tf.nn.embedding_lookup(self.context, context),
            )
            return dots + tf.reduce_mean(self.bias)

    model = Word2Vec()

    @by.optimize()
    @tf.function
    def train_step(target: Any, context: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels, model(target, context))
            )
        gradients = tape.gradient(loss, model.trainable_variables)
        for v, g in zip(model.trainable_variables, gradients, strict=True):
            if isinstance(g, tf.IndexedSlices):
                v.scatter_sub(tf.IndexedSlices(0.5 * g.values, g.indices))
            else:
                v.assign_sub(0.5 * g)
        return loss

    def pairs(random: np.random.Generator) -> Any:
        labels = np.tile(np.array([[1.0, 0.0, 0.0]]), [8, 1])
        return random.integers(0, WORDS, 8), random.integers(0, WORDS, (8, 3)), labels

    for target, context, labels in by.batches(5, pairs):
        train_step(target, context, labels)
    return model.trainable_variables


@SCRIPTS
def mixture_of_experts(by: By) -> Any:
    """Every example goes through its two best experts; a gate and a balancing loss."""
    random = np.random.default_rng(5)
    gate = tf.Variable(random.normal(size=(WIDTH, 3)), name="gate")
    first = [tf.Variable(random.normal(size=(WIDTH, 6)) / 3, name=f"up{i}") for i in range(3)]
    second = [tf.Variable(random.normal(size=(6, 2)) / 3, name=f"down{i}") for i in range(3)]
    variables = [gate, *first, *second]

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            weights = tf.nn.softmax(x @ gate)
            best = tf.math.top_k(weights, 2).indices
            gates = weights * tf.reduce_sum(tf.one_hot(best, 3, dtype=tf.float64), axis=1)
            outputs = [tf.nn.relu(x @ up) @ down for up, down in zip(first, second, strict=True)]
            mixed = tf.add_n([gates[:, i : i + 1] * output for i, output in enumerate(outputs)])
            loss = tf.reduce_mean(tf.square(mixed - y)) + 0.01 * tf.reduce_mean(weights**2)
        for v, g in zip(variables, tape.gradient(loss, variables), strict=True):
            v.assign_sub(0.1 * g)
        return loss

    def rows(random: np.random.Generator) -> Any:
        return random.normal(size=(8, WIDTH)), random.normal(size=(8, 2))

    for x, y in by.batches(5, rows):
        train_step(x, y)
    return variables


@SCRIPTS.like("traced")  # else the branch not taken has no gradient at all
def expert_chosen_by_cond(by: By) -> Any:
    """The batch's kind chooses one of two experts by `tf.cond` in the forward computation."""
    random = np.random.default_rng(5)
    variables = [
        tf.Variable(random.normal(size=shape) / 2, name=name)
        for name, shape in {"stem": (WIDTH, 6), "left": (6, 2), "right": (6, 2)}.items()
    ]
    stem, left, right = variables

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any, kind: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.tanh(x @ stem)
            out = tf.cond(kind > 0, lambda: hidden @ left, lambda: tf.tanh(hidden @ right))
            loss = tf.reduce_mean(tf.square(out - y))
        for v, g in zip(variables, tape.gradient(loss, variables), strict=True):
            v.assign_sub(0.1 * g)
        return loss

    def rows(random: np.random.Generator) -> Any:
        return random.normal(size=(8, WIDTH)), random.normal(size=(8, 2))

    for number, (x, y) in enumerate(by.batches(5, rows)):
        train_step(x, y, tf.constant(number % 2))
    return variables


@SCRIPTS
def translation_transformer(by: By) -> Any:
    """Encoder, decoder with cross-attention, masked loss; a `train_step` of the model's own."""
    use_float64()
    source, target = keras.Input((LENGTH,), dtype="int32"), keras.Input((LENGTH,), dtype="int32")
    memory = layers.Dense(WIDTH, activation="gelu")(Embeddings()(source))
    x = Embeddings()(target)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, memory))
    outputs = layers.Dense(WORDS)(x)

    class Translator(keras.Model):
        def train_step(self, data: Any) -> Any:
            (source, target), labels = data
            with tf.GradientTape() as tape:
                logits = self([source, target], training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                # The same number of words everywhere, so that the mean is that of all.
                mask = tf.cast(labels != 0, losses.dtype)
                loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
            gradients = dense(tape.gradient(loss, self.trainable_variables))
            gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss, "perplexity": tf.exp(loss) / math.e}

    model = Translator([source, target], outputs)
    model.compile(keras.optimizers.Adam(0.01))
    model.optimizer.build(model.trainable_variables)
    random = np.random.default_rng(1)
    words = random.integers(1, WORDS, (3, 32, LENGTH)).astype("int32")
    words[2, :, -1] = 0
    by.fit(model, ((words[0], words[1]), words[2]), batch=4)
    return model.trainable_variables


@SCRIPTS
def vision_transformer(by: By) -> Any:
    """Patches, a class token that is a variable of the layer, AdamW."""
    use_float64()

    class WithClassToken(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.token = self.add_weight(shape=(1, 1, WIDTH), name="token")
            self.positions = self.add_weight(shape=(1, 5, WIDTH), name="positions")

        def call(self, x: Any) -> Any:
            token = tf.tile(tf.convert_to_tensor(self.token), [tf.shape(x)[0], 1, 1])
            return tf.concat([token, x], axis=1) + self.positions

    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(WIDTH, 4, 4)(inputs)
    x = WithClassToken()(layers.Reshape((4, WIDTH))(x))
    x = EncoderLayer()(x)
    model = keras.Model(inputs, layers.Dense(3)(x[:, 0]))
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.01)
    optimizer.build(model.trainable_variables)

    @by.optimize()
    @tf.function
    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def digits(random: np.random.Generator) -> Any:
        return random.normal(size=(8, 8, 8, 1)), random.integers(0, 3, 8)

    for images, labels in by.batches(5, digits):
        train_step(images, labels)
    # Softmax does not see a key's bias: its gradient is rounding, which Adam makes large.
    return [v for v in model.trainable_variables if "key/bias" not in v.path]
