"""The last rank is lost while rank 0 has no batches any more: `lost_with_uneven_data.py HOW`.

HOW is one of
  killed: SIGKILL; ranks know the numbers of their batches, and wait in a step.
  stopped: SIGSTOP; ranks do not know them, and wait before a step.
"""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import models
import tensorflow as tf
from harness import RANK, SIZE, write_json

import tf_libra

HOW = sys.argv[1]
SECONDS = 3.0
FATAL_BATCH = 4


def batches() -> Iterator[Any]:
    """Yields the batches of this rank, the last one until it is lost."""
    for number in range(2 if RANK == 0 else 9):
        if RANK == SIZE - 1 and number == FATAL_BATCH and HOW == "stopped":
            be_lost(signal.SIGSTOP)
        yield models.part(models.batch(number, SIZE, "float32"), RANK, SIZE)


def be_lost(signal_number: int) -> None:
    write_json("incident", {"pid": os.getpid()})
    os.kill(os.getpid(), signal_number)


def main() -> None:
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize("wfbp", timeout_seconds=SECONDS)(tf.function(model.step))
    number = 0
    try:
        known: Any = list(batches()) if HOW == "killed" else batches()
        for batch in tf_libra.join(known, timeout_seconds=SECONDS):
            if RANK == SIZE - 1 and number == FATAL_BATCH:
                be_lost(signal.SIGKILL)
            step(*batch)
            number += 1
    except tf.errors.UnavailableError as error:
        write_json("lost", {"batch": number, "error": str(error)})


main()
