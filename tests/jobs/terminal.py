"""Training until a plan is active, and a little longer; rank 0's standard error is a terminal."""

import atexit
import contextlib
import os
import pty
import re
import sys
import threading

import horovod.tensorflow as hvd
import models
import tensorflow as tf
from harness import FOLDER, RANK, SIZE

import tf_libra

shown = threading.Event()  # how long a phase has taken so far stands on the terminal

if RANK == 0:
    reading, writing = pty.openpty()
    sys.stderr = os.fdopen(writing, "w", buffering=1)

    def keep() -> None:
        said = b""
        with (FOLDER / "terminal.txt").open("wb") as file, contextlib.suppress(OSError):
            while True:  # until the other side is closed
                some = os.read(reading, 65536)
                file.write(some)
                said += some
                if re.search(rb"measure[^\r\n]*, \d+ s", said):
                    shown.set()

    def close() -> None:
        sys.stderr, terminal = sys.__stderr__, sys.stderr
        terminal.close()
        reader.join()

    reader = threading.Thread(target=keep, daemon=True)
    reader.start()
    atexit.register(close)  # called last: whatever is said at the end comes before

hvd.init()
model = models.HandWritten("float32", "sgd")
step = tf_libra.optimize(tf_libra.strategies.Libra(threads=(1, 2)))(tf.function(model.step))
steps_left = 12
for number in range(120):
    if number == 3 and RANK == 0:  # a step whose data come late
        assert shown.wait(120), "nothing is shown of a phase that takes long"
    step(*models.part(models.batch(number, SIZE, "float32"), RANK, SIZE))
    steps_left -= step.phase == "run"
    if steps_left == 0:
        break
if RANK == 0:
    (FOLDER / "explained.txt").write_text(step.explain())
