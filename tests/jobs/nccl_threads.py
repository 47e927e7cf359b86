"""engine="horovod" in an environment that `nccl.prepare()` has set, and no thread counts named."""

from typing import Any

import horovod.tensorflow as hvd
import models
import tensorflow as tf
from harness import RANK, SIZE, Cases

import tf_libra

cases = Cases()


@cases
def default_threads() -> Any:
    model = models.HandWritten("float64", "momentum")
    budget = {"max_tuning_steps": 20, "tuning": tf_libra.Tuning(max_seconds=1e6)}
    step = tf_libra.optimize("libra", engine="horovod", **budget)(tf.function(model.step))
    for number in range(24):
        step(*models.part(models.batch(number, SIZE, "float64"), RANK, SIZE))
    return {
        "phase": str(step.phase),
        "threads": [group.num_threads for group in step.plan.groups],
        "measured": [] if step.tuned is None else [s.num_threads for s in step.tuned.samples],
    }


if __name__ == "__main__":
    hvd.init()
    cases.run()
