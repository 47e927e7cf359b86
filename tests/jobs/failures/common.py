"""Training steps and plans of the cases of failures."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import tensorflow as tf
from harness import RANK, SIZE, Cases

import tf_libra
import tf_libra.elastic
from tf_libra.specs.plan import Plan

cases = Cases()
PLAN_FILE = sys.argv[1]
LAST = SIZE - 1


def shard(number: int = 0, dtype: str = "float32") -> tuple[Any, Any]:
    return models.part(models.batch(number, SIZE, dtype), RANK, SIZE)


def one_step(
    make: Callable[[], Any] = lambda: models.HandWritten("float32", "sgd"), **o: Any
) -> Any:
    """A fresh model's first step."""
    model = make()
    step = tf_libra.optimize(**{"strategy": "libra"} | o)(tf.function(model.step))
    step(*shard())
    return step


def other(**fields: Any) -> Plan:
    return replace(Plan.from_json(Path(PLAN_FILE).read_text()), **fields)


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """On the last rank only."""
    original = getattr(owner, name)
    if RANK == LAST:
        setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
