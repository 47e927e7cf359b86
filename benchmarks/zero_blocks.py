"""Bytes that ranks send of gradients if they leave out zero blocks of one size or another.

    python -m benchmarks.zero_blocks --models embedding,cnn5m,mlp --steps 3

Counts, not times: no machine and no load changes them. One process trains each model for some steps
on random batches, and computes the gradients of two more, as two ranks would. A rank sends half of
its gradients to the other one, and half of the sum, each without blocks that are zero there, and
with one bit per block that says which. The first tensor begins with a block, and blocks go on from
one tensor to the next.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import app, flags
from numpy.typing import NDArray

from benchmarks import markdown, models

SIZES = (64, 128, 256, 512, 1024, 2048, 4096)

FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()
_MODELS = flags.DEFINE_list(
    "models", "embedding,cnn5m,mlp", "Names in benchmarks/models.py.", flag_values=FLAGS
)
_STEPS = flags.DEFINE_integer(
    "steps", 3, "Steps before the gradients.", lower_bound=0, flag_values=FLAGS
)


def sent_share(gradients: Sequence[NDArray[np.uint8]], block_bytes: int) -> float:
    """Returns the share of bytes that ranks send.

    Args:
        gradients: bytes of each rank's gradients, shape [num_bytes].
        block_bytes: size of a block.
    """
    count = -(-len(gradients[0]) // block_bytes)
    content = np.zeros([len(gradients), count * block_bytes], bool)
    content[:, : len(gradients[0])] = np.stack(gradients) != 0
    travels = content.reshape(len(gradients), count, block_bytes).any(axis=2)
    parts, sums = travels.mean(), travels.any(axis=0).mean()
    return float((parts + sums) / 2 + 1 / (8 * block_bytes))


def gradients_of(name: str, num_steps: int, num_ranks: int = 2) -> list[NDArray[np.uint8]]:
    """Returns the bytes of the gradients of different batches after some steps."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    model, inputs, labels, loss = models.build(name)
    optimizer = tf.keras.optimizers.SGD(0.01)
    random = np.random.default_rng(1)

    def compute(train: bool) -> list[Any]:
        x, y = (_like(part, random) for part in (inputs, labels))
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(y, model(x, training=True)))
        gradients = tape.gradient(value, model.trainable_variables)
        if train:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]

    for _ in range(num_steps):
        compute(train=True)
    return [
        np.concatenate([part.reshape(-1).view(np.uint8) for part in reversed(compute(train=False))])
        for _ in range(num_ranks)
    ]


def _like(batch: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    if batch.dtype.kind == "f":
        return random.random(batch.shape).astype(batch.dtype)
    return random.integers(batch.max() + 1, size=batch.shape).astype(batch.dtype)


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    rows = [[str(size), str(2**20 // size)] for size in SIZES]
    for name in _MODELS.value:
        gradients = gradients_of(name, _STEPS.value)
        for row, size in zip(rows, SIZES, strict=True):
            row.append(f"{100 * sent_share(gradients, size):.2f} %")
    print(markdown.table(["block, bytes", "looks per MiB", *_MODELS.value], rows))


if __name__ == "__main__":
    app.run(main)
