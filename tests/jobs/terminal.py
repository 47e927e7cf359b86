"""Trains until a plan is in force, and a little longer; rank 0's standard error is a terminal."""

import atexit
import contextlib
import os
import pty
import sys
import threading

import horovod.tensorflow as hvd
import models
import tensorflow as tf
from harness import FOLDER, RANK, SIZE

import tf_libra

if RANK == 0:
    reading, writing = pty.openpty()
    sys.stderr = os.fdopen(writing, "w", buffering=1)

    def keep() -> None:
        with (FOLDER / "terminal.txt").open("wb") as file, contextlib.suppress(OSError):
            while True:  # until the other side is closed
                file.write(os.read(reading, 65536))

    def close() -> None:
        sys.stderr, terminal = sys.__stderr__, sys.stderr
        terminal.close()
        reader.join()

    reader = threading.Thread(target=keep, daemon=True)
    reader.start()
    atexit.register(close)  # called last: whatever is said at the end comes before

hvd.init()
model = models.HandWritten("float32", "sgd")
step = tf_libra.optimize("libra", threads=(1, 2))(tf.function(model.step))
steps_left = 12
for number in range(120):
    step(*models.part(models.batch(number, SIZE, "float32"), RANK, SIZE))
    steps_left -= step.phase == "run"
    if steps_left == 0:
        break
if RANK == 0:
    (FOLDER / "explained.txt").write_text(step.explain())
