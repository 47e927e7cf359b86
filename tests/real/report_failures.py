"""A step of two ranks that do not meet, or of which one ends: `report_failures.py SITUATION`.

Each situation has been reported in public as one in which TensorFlow's workers hang.
"""

import json
import os
import sys
import time
from pathlib import Path

import tensorflow as tf

import tf_libra

FOLDER = Path(os.environ["TF_LIBRA_JOB_FOLDER"])
CONFIG = json.loads(os.environ["TF_CONFIG"])
RANK = int(CONFIG["task"]["index"])
# The first waits end soon, where a rank never comes; all others as late as tests do.
SHORT_SECONDS, LONG_SECONDS = 1.0, 120.0
STEPS = 6


def train(steps: int, timeout_seconds: float) -> None:
    """Takes steps, and writes which error this rank gets; "" if none."""
    w = tf.Variable(tf.ones([3]))

    @tf_libra.optimize("wfbp", timeout_seconds=timeout_seconds, max_tuning_steps=2, progress=False)
    @tf.function
    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(w - x))
        w.assign_sub(0.1 * tape.gradient(loss, w))

    try:
        for number in range(steps):
            step(tf.fill([3], float(number + RANK)))
        error = None
    except (ValueError, tf.errors.OpError) as raised:
        error = raised
    path = FOLDER / f"error.{RANK}.json"
    kind = "" if error is None else type(error).__name__
    path.with_suffix(".tmp").write_text(json.dumps({"type": kind, "message": str(error or "")}))
    path.with_suffix(".tmp").replace(path)


def wait_for_end_of(rank: int) -> None:
    """Returns once another rank has written how its training ended."""
    until = time.monotonic() + LONG_SECONDS
    while not (FOLDER / f"error.{rank}.json").exists():
        assert time.monotonic() < until, f"rank {rank} has not ended"
        time.sleep(0.02)


def main(situation: str) -> None:
    if situation in ("loopback", "missing_task"):
        if situation == "missing_task":
            os.environ["TF_CONFIG"] = json.dumps({"cluster": CONFIG["cluster"]})
        train(STEPS, SHORT_SECONDS)
    elif situation == "late":
        if RANK:
            wait_for_end_of(0)
        train(STEPS, SHORT_SECONDS)
    elif situation == "ends_early":
        train(4 if RANK else STEPS, LONG_SECONDS)
    else:
        assert situation == "ends_first"
        train(STEPS, LONG_SECONDS)
        if RANK == 0:
            wait_for_end_of(1)  # as one that saves and evaluates
            print(tf_libra.rank(), tf_libra.size())


if __name__ == "__main__":
    main(sys.argv[1])
