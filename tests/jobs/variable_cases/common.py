"""Models and training steps of the cases of variables."""

from collections.abc import Callable
from typing import Any

import models
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE, Cases

cases = Cases()
LAST = SIZE - 1
# Measuring that ends early still leads through every phase.
BRIEFLY: dict[str, Any] = {"strategy": "mg-wfbp", "max_tuning_steps": 2}
STEPS = 4


def shard(number: int = 0, rank: int = RANK) -> tuple[Any, Any]:
    return models.part(models.batch(number, SIZE, "float32"), rank, SIZE)


def bits(variables: Any) -> list[str]:
    return [np.asarray(tf.convert_to_tensor(variable)).tobytes().hex() for variable in variables]


def own_seed() -> int:
    return 1 + RANK


def hand_written(seed: int | None = None) -> models.HandWritten:
    return models.HandWritten("float32", "momentum", own_seed() if seed is None else seed)


def train(step: Callable[..., Any], *given: Any, first: int = 0, steps: int = STEPS) -> None:
    for number in range(first, first + steps):
        step(*given, *shard(number))


def comparison(model: models.HandWritten) -> dict[str, Any]:
    """The weights after training, and what one process gets from rank 0's on the joint batch."""
    alone = hand_written(seed=1)
    for number in range(STEPS):
        alone.step(*models.batch(number, SIZE, "float32"))
    pairs = zip(model.variables, alone.variables, strict=True)
    error = max(float(np.max(np.abs(a.numpy() - b.numpy()))) for a, b in pairs)
    return {"bits": bits(model.variables), "error": error}
