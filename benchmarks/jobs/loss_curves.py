"""Trainings of `benchmarks.loss_curves`, on all ranks of one job."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

FORMATS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"wire_dtype": "bfloat16"},
    "bfloat16, error feedback": {"wire_dtype": "bfloat16", "error_feedback": True},
}
_SHARE = 16  # examples of a rank's batch
Data = tuple[np.ndarray, np.ndarray]


def digits() -> tuple[Any, Data]:
    """Returns a convolutional network, and images of handwritten digits."""
    import keras
    from sklearn.datasets import load_digits

    layers = keras.layers
    images, labels = load_digits(return_X_y=True)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    return model, (images.reshape(-1, 8, 8, 1).astype("float32") / 16, labels)


def _passages(length: int) -> tuple[list[str], list[int]]:
    """Returns passages of Python's documentation of so many words, and the topic of each."""
    from pydoc_data.topics import topics

    passages, labels = [], []
    for number, (_, text) in enumerate(sorted(topics.items())):
        words = text.split()
        for begin in range(0, len(words) - length + 1, length):
            passages.append(" ".join(words[begin : begin + length]))
            labels.append(number)
    return passages, labels


def transformer() -> tuple[Any, Data]:
    """Returns two blocks of a transformer, and characters of Python's documentation."""
    import keras

    layers = keras.layers
    length, width, vocabulary = 32, 48, 128
    passages, _ = _passages(50)
    text = np.frombuffer(" ".join(passages).encode("ascii", "replace"), np.uint8)
    count = len(text) // (length + 1)
    rows = text[: count * (length + 1)].reshape(count, length + 1).astype("int32")
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(tokens)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 12)(y, y, use_causal_mask=True)])
        y = layers.Dense(2 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(y)])
    model = keras.Model(tokens, layers.Dense(vocabulary)(layers.LayerNormalization()(x)))
    return model, (rows[:, :-1], rows[:, 1:])


def embedding() -> tuple[Any, Data]:
    """Returns a table of 4096 words and a classifier, and passages of 20 words with their topic."""
    import zlib

    import keras

    layers = keras.layers
    passages, labels = _passages(20)
    ids = [[zlib.crc32(word.encode()) % 4096 for word in text.split()] for text in passages]
    tokens = keras.Input((20,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(4096, 32)(tokens))
    model = keras.Model(tokens, layers.Dense(max(labels) + 1)(x))
    return model, (np.array(ids, "int32"), np.array(labels))


TRAININGS: dict[str, Callable[[], tuple[Any, Data]]] = {
    "digits, CNN": digits,
    "text, transformer": transformer,
    "topics, embedding": embedding,
}


def _batches(data: Data, seed: int, steps: int, rank: int, size: int) -> Iterator[Data]:
    """Yields a rank's share of random batches, the same in every format."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        chosen = random.integers(0, len(data[0]), _SHARE * size)[rank::size]
        yield data[0][chosen], data[1][chosen]


def losses_of(make: Callable[[], tuple[Any, Data]], steps: int, seeds: int) -> dict[str, Any]:
    """Returns the losses of all formats, seeds and steps, averaged over the ranks."""
    import keras
    import tensorflow as tf

    import tf_libra
    from tf_libra import collectives

    rank, size = tf_libra.rank(), tf_libra.size()
    model, data = make()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weights = model.trainable_variables

    def new_step() -> Any:
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(weights)

        def train_step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(inputs, training=True))
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        return tf.function(train_step)

    # A dense gradient of tables: rows are never rounded. The plan of one group is that of all.
    options: dict[str, Any] = {"sparse_as_dense": True, "progress": False, "engine": "lanes"}
    planned = tf_libra.optimize("syneasgd", **options)(new_step())
    for batch in _batches(data, 0, 1000, rank, size):
        planned(*batch)
        if planned.plan is not None:
            break
    found: dict[str, Any] = {}
    for name, lossy in FORMATS.items():
        plan = replace(planned.plan, wire_dtype=lossy.get("wire_dtype"))
        found[name] = []
        for seed in range(seeds):
            keras.utils.set_random_seed(seed)
            for weight, fresh in zip(weights, make()[0].trainable_variables, strict=True):
                weight.assign(fresh)
            step = tf_libra.optimize(plan=plan, **options, **lossy)(new_step())
            curve = tf.stack([step(*batch) for batch in _batches(data, seed, steps, rank, size)])
            mean = collectives.all_reduce(curve, range(size), f"{name}/{seed}", "average")
            found[name].append(mean.numpy().tolist())
    return found


def main(path: str, steps: str, seeds: str) -> None:
    """Trains all models; rank 0 writes the losses."""
    import tf_libra

    losses = {name: losses_of(make, int(steps), int(seeds)) for name, make in TRAININGS.items()}
    if tf_libra.rank() == 0:
        Path(path).write_text(json.dumps(losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
