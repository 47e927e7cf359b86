"""Builds the networks of the papers, with a loss to train them on. Needs TensorFlow.

`keras.applications` if that is the published network. Its ResNet-152 has biases in addition to
batch normalization, which the published one has not, and it lacks Inception-v4 and BERT.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

layers = tf.keras.layers


@dataclass(frozen=True)
class Task:
    """A network and random data to train it on.

    Attributes:
      title: what papers call it.
      source: where its definition is from.
      sample: one sample of its input, in words.
      batch: returns a nest of arrays for a number of samples.
      model: the Keras model.
      loss: the loss for a batch, a scalar tensor.
    """

    title: str
    source: str
    sample: str
    batch: Callable[[int], Any]
    model: tf.keras.Model
    loss: Callable[[Any], tf.Tensor]


def vgg16() -> Task:
    """VGG16 (Simonyan and Zisserman 2015), configuration D."""
    return _of_images("VGG16", "keras.applications.VGG16", tf.keras.applications.VGG16)


def resnet152() -> Task:
    """ResNet-152 (He et al. 2016), convolutions without biases."""
    return _of_images(
        "ResNet-152", "He et al. 2016, Table 1: convolutions without bias", _resnet152
    )


def xception() -> Task:
    """Xception (Chollet 2017)."""
    return _of_images("Xception", "keras.applications.Xception", tf.keras.applications.Xception)


def densenet201() -> Task:
    """DenseNet-201 (Huang et al. 2017)."""
    return _of_images(
        "DenseNet-201", "keras.applications.DenseNet201", tf.keras.applications.DenseNet201
    )


def inceptionv4() -> Task:
    """Inception-v4 (Szegedy et al. 2017), at the 224x224 that ASC-WFBP's paper trains it on."""
    return _of_images("Inception-v4", "Szegedy et al. 2017, Figures 3 to 9", _inceptionv4)


def bert_base() -> Task:
    """BERT-Base (Devlin et al. 2019) with both heads of its pre-training, 128 tokens."""
    length, predictions, vocabulary = 128, 20, 30522
    model = _BertForPreTraining(
        vocabulary=vocabulary, positions=512, width=768, blocks=12, heads=12, inner=3072
    )

    def batch(samples: int) -> Any:
        random = np.random.default_rng(0)
        return {
            "tokens": random.integers(vocabulary, size=(samples, length), dtype=np.int32),
            "segments": random.integers(2, size=(samples, length), dtype=np.int32),
            "masked": random.integers(length, size=(samples, predictions), dtype=np.int32),
            "words": random.integers(vocabulary, size=(samples, predictions), dtype=np.int32),
            "is_next": random.integers(2, size=(samples,), dtype=np.int32),
        }

    def loss(data: Any) -> tf.Tensor:
        words, is_next = model(data, training=True)
        return _cross_entropy(data["words"], words) + _cross_entropy(data["is_next"], is_next)

    loss(batch(1))  # builds the layers
    return Task(
        "BERT-Base",
        "Devlin et al. 2019: 12 blocks, 768 wide; masked words and next sentence",
        f"{length} tokens, {predictions} of them predicted",
        batch,
        model,
        loss,
    )


TASKS: dict[str, Callable[[], Task]] = {
    builder.__name__: builder
    for builder in (vgg16, resnet152, xception, densenet201, inceptionv4, bert_base)
}


def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def _of_images(title: str, source: str, build: Callable[..., tf.keras.Model]) -> Task:
    model = build(weights=None, classifier_activation=None)
    shape = model.input_shape[1:]

    def batch(samples: int) -> Any:
        random = np.random.default_rng(0)
        images = random.random((samples, *shape), np.float32)
        return images, random.integers(1000, size=samples, dtype=np.int32)

    def loss(data: Any) -> tf.Tensor:
        images, labels = data
        return _cross_entropy(labels, model(images, training=True))

    return Task(title, source, "x".join(map(str, shape)), batch, model, loss)


def _normalized(
    x: Any, filters: int, size: int | tuple[int, int], strides: int = 1, padding: str = "same"
) -> Any:
    x = layers.Conv2D(filters, size, strides, padding=padding, use_bias=False)(x)
    return layers.BatchNormalization(epsilon=1e-5)(x)


def _resnet152(weights: None, classifier_activation: None) -> tf.keras.Model:
    images = tf.keras.Input((224, 224, 3))
    x = layers.ReLU()(_normalized(images, 64, 7, 2))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, blocks in enumerate((3, 8, 36, 3)):
        filters = 64 * 2**stage
        for block in range(blocks):
            strides = 2 if stage > 0 and block == 0 else 1
            shortcut = x if block > 0 else _normalized(x, 4 * filters, 1, strides)
            x = layers.ReLU()(_normalized(x, filters, 1, strides))
            x = layers.ReLU()(_normalized(x, filters, 3))
            x = layers.ReLU()(layers.Add()([_normalized(x, 4 * filters, 1), shortcut]))
    x = layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(images, layers.Dense(1000)(x))


def _inceptionv4(weights: None, classifier_activation: None) -> tf.keras.Model:
    def conv(
        x: Any,
        filters: int,
        size: int | tuple[int, int],
        strides: int = 1,
        padding: str = "same",
    ) -> Any:
        return layers.ReLU()(_normalized(x, filters, size, strides, padding))

    def average(x: Any) -> Any:
        return layers.AveragePooling2D(3, 1, padding="same")(x)

    def concatenated(*branches: Any) -> Any:
        return layers.Concatenate()(branches)

    def stem(x: Any) -> Any:  # Figure 3
        x = conv(x, 32, 3, 2, "valid")
        x = conv(x, 32, 3, 1, "valid")
        x = conv(x, 64, 3)
        x = concatenated(layers.MaxPooling2D(3, 2)(x), conv(x, 96, 3, 2, "valid"))
        short = conv(conv(x, 64, 1), 96, 3, 1, "valid")
        long = conv(conv(conv(x, 64, 1), 64, (7, 1)), 64, (1, 7))
        x = concatenated(short, conv(long, 96, 3, 1, "valid"))
        return concatenated(conv(x, 192, 3, 2, "valid"), layers.MaxPooling2D(3, 2)(x))

    def block_a(x: Any) -> Any:  # Figure 4
        return concatenated(
            conv(average(x), 96, 1),
            conv(x, 96, 1),
            conv(conv(x, 64, 1), 96, 3),
            conv(conv(conv(x, 64, 1), 96, 3), 96, 3),
        )

    def block_b(x: Any) -> Any:  # Figure 5
        short = conv(conv(conv(x, 192, 1), 224, (1, 7)), 256, (7, 1))
        long = conv(conv(conv(x, 192, 1), 192, (1, 7)), 224, (7, 1))
        long = conv(conv(long, 224, (1, 7)), 256, (7, 1))
        return concatenated(conv(average(x), 128, 1), conv(x, 384, 1), short, long)

    def block_c(x: Any) -> Any:  # Figure 6
        short = conv(x, 384, 1)
        long = conv(conv(conv(x, 384, 1), 448, (1, 3)), 512, (3, 1))
        return concatenated(
            conv(average(x), 256, 1),
            conv(x, 256, 1),
            conv(short, 256, (1, 3)),
            conv(short, 256, (3, 1)),
            conv(long, 256, (3, 1)),
            conv(long, 256, (1, 3)),
        )

    def reduction_a(x: Any) -> Any:  # Figure 7: k, l, m, n = 192, 224, 256, 384
        long = conv(conv(conv(x, 192, 1), 224, 3), 256, 3, 2, "valid")
        return concatenated(layers.MaxPooling2D(3, 2)(x), conv(x, 384, 3, 2, "valid"), long)

    def reduction_b(x: Any) -> Any:  # Figure 8
        short = conv(conv(x, 192, 1), 192, 3, 2, "valid")
        long = conv(conv(conv(x, 256, 1), 256, (1, 7)), 320, (7, 1))
        long = conv(long, 320, 3, 2, "valid")
        return concatenated(layers.MaxPooling2D(3, 2)(x), short, long)

    images = tf.keras.Input((224, 224, 3))
    x = stem(images)
    for _ in range(4):
        x = block_a(x)
    x = reduction_a(x)
    for _ in range(7):
        x = block_b(x)
    x = reduction_b(x)
    for _ in range(3):
        x = block_c(x)
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    return tf.keras.Model(images, layers.Dense(1000)(x))


class _BertForPreTraining(tf.keras.Model):
    """Logits of the masked words, whose matrix is the word embedding, and of the next sentence."""

    def __init__(
        self, vocabulary: int, positions: int, width: int, blocks: int, heads: int, inner: int
    ) -> None:
        super().__init__(name="bert")
        self._words = layers.Embedding(vocabulary, width, name="words")
        self._positions = layers.Embedding(positions, width, name="positions")
        self._segments = layers.Embedding(2, width, name="segments")
        self._embedding_norm = _normalization("embedding_norm")
        self._dropout = layers.Dropout(0.1)
        self._blocks = [
            _Block(width, heads, inner, name=f"block_{index}") for index in range(blocks)
        ]
        self._pooler = layers.Dense(width, activation="tanh", name="pooler")
        self._transform = layers.Dense(width, activation="gelu", name="transform")
        self._transform_norm = _normalization("transform_norm")
        self._bias = self.add_weight(shape=(vocabulary,), initializer="zeros", name="words_bias")
        self._next = layers.Dense(2, name="next_sentence")

    def call(self, data: Any, training: bool = False) -> tuple[tf.Tensor, tf.Tensor]:
        tokens = data["tokens"]
        x = self._words(tokens) + self._positions(tf.range(tokens.shape[1]))
        x = self._embedding_norm(x + self._segments(data["segments"]))
        x = self._dropout(x, training=training)
        for block in self._blocks:
            x = block(x, training=training)
        is_next = self._next(self._pooler(x[:, 0]))
        masked = tf.gather(x, data["masked"], batch_dims=1)
        masked = self._transform_norm(self._transform(masked))
        words = tf.matmul(
            tf.reshape(masked, (-1, masked.shape[-1])), self._words.embeddings, transpose_b=True
        )
        words = tf.reshape(words + self._bias, (*masked.shape[:2], -1))
        return words, is_next


class _Block(tf.keras.layers.Layer):
    """One transformer block: attention and feed-forward, each with residual and normalization."""

    def __init__(self, width: int, heads: int, inner: int, name: str) -> None:
        super().__init__(name=name)
        self._heads = heads
        self._query, self._key, self._value, self._output = (
            layers.Dense(width, name=part) for part in ("query", "key", "value", "output")
        )
        self._attention_norm = _normalization("attention_norm")
        self._inner = layers.Dense(inner, activation="gelu", name="inner")
        self._outer = layers.Dense(width, name="outer")
        self._norm = _normalization("norm")
        self._dropout = layers.Dropout(0.1)

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        samples, length, width = x.shape

        def split(projected: tf.Tensor) -> tf.Tensor:
            shape = (samples, length, self._heads, width // self._heads)
            return tf.transpose(tf.reshape(projected, shape), (0, 2, 1, 3))

        scores = tf.matmul(split(self._query(x)), split(self._key(x)), transpose_b=True)
        weights = tf.nn.softmax(scores / (width // self._heads) ** 0.5)
        mixed = tf.matmul(self._dropout(weights, training=training), split(self._value(x)))
        mixed = tf.reshape(tf.transpose(mixed, (0, 2, 1, 3)), (samples, length, width))
        mixed = self._dropout(self._output(mixed), training=training)
        x = self._attention_norm(x + mixed)
        return self._norm(x + self._dropout(self._outer(self._inner(x)), training=training))


def _normalization(name: str) -> Any:
    return layers.LayerNormalization(epsilon=1e-12, name=name)
