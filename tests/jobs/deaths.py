"""The last rank is lost in its fourth step, as `deaths.py HOW PLAN.json` says; the others tell.

HOW is one of
  kill: SIGKILL in the middle of a step, under a plan.
  kill-tuning: the same in a step that measures.
  exit: the process ends without an error between two steps.
  raise: the step's own code raises while it runs.
  stop: SIGSTOP in the middle of a step; the others wait for 3 seconds.
  late: it comes to a step only after the others were warned, and all goes on.
"""

import os
import signal
import sys
import time
from typing import Any

import horovod.tensorflow as hvd
import models
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, write_json

import tf_libra

HOW, PLAN_FILE = sys.argv[1:]
FATAL_STEP = 4
LAST = SIZE - 1


def wait_for(name: str) -> None:
    """Returns once the test has made a file of this name."""
    while not (FOLDER / name).exists():
        time.sleep(0.05)


def incident(number: Any) -> Any:
    """What happens inside of the step, before its loss is computed."""
    if RANK == LAST and int(number) == FATAL_STEP:
        write_json("incident", {"pid": os.getpid()})
        if HOW.startswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif HOW == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif HOW == "raise":
            raise ValueError("the image cannot be decoded")
        elif HOW == "late":
            wait_for("go-on")
    return number


class Model(models.HandWritten):
    def step(self, inputs: tf.Tensor, labels: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        number = tf.py_function(incident, [number], tf.int32)
        with tf.control_dependencies([number]):
            return super().step(tf.identity(inputs), labels)


def main() -> None:
    hvd.init()
    model = Model("float32", "sgd")
    options: dict[str, Any] = {"plan": PLAN_FILE}
    if HOW == "kill-tuning":
        options = {"strategy": "libra", "threads": (1, 2)}
    if HOW == "stop":
        options["timeout_seconds"] = 3.0
    if HOW == "late":
        options["stall_warning_seconds"] = 0.5
    step = tf_libra.optimize(**options)(tf.function(model.step))
    done, errors = 0, []
    for number in range(1, 8):
        if HOW == "exit" and RANK == LAST and number == FATAL_STEP:
            return
        inputs, labels = models.part(models.batch(number, SIZE, "float32"), RANK, SIZE)
        try:
            step(inputs, labels, tf.constant(number))
            done += 1
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
            write_json("deaths", {"done": done, "errors": errors, "phase": str(step.phase)})
            if len(errors) == 2:
                # As a training script ends that does not catch it.
                raise
    write_json("deaths", {"done": done, "errors": errors, "phase": str(step.phase)})


if __name__ == "__main__":
    main()
