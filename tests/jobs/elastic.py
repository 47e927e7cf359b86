"""Trains under Horovod's elastic mode while workers come and go: `elastic.py PLAN.json ENGINE`.

Every rank has the same data, so that weights do not depend on how many there are. The first four
workers stop after ten steps until the test lets them go on; the job ends eight steps after there
are four workers again.
"""

import json
import os
import sys
import time
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import FOLDER

import tf_libra
import tf_libra.elastic

HELD_STEP = 10
COMMIT_EVERY = 3
WORLD_SIZE = 4
MORE_STEPS = 8


def note(document: dict[str, Any]) -> None:
    """A line of this process's own file."""
    with (FOLDER / f"steps.{os.getpid()}.txt").open("a") as file:
        file.write(json.dumps(document) + "\n")


def main() -> None:
    hvd.init()
    model = models.HandWritten("float64", "sgd")
    # Made for four workers.
    step = tf_libra.optimize(
        tf_libra.strategies.Libra(threads=(1, 2)),
        plan=sys.argv[1],
        engine=sys.argv[2],
        max_tuning_steps=4,
    )(tf.function(model.step))
    state = tf_libra.elastic.TensorFlowState(model.variables, step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        last = None
        if hvd.size() == WORLD_SIZE and state.step >= COMMIT_EVERY:
            last = state.step + MORE_STEPS
        while state.step != last:
            while state.step == HELD_STEP and not (FOLDER / "go-on").exists():
                time.sleep(0.05)
            try:
                step(*models.batch(state.step, 1, "float64"))
            except Exception as error:
                note({"error": f"{type(error).__name__}: {error}"})
                raise
            state.step += 1
            note({"step": state.step, "size": hvd.size(), "phase": str(step.phase)})
            if state.step % COMMIT_EVERY == 0:
                state.commit()
        if hvd.rank() == 0:
            plan = np.array(step.plan.to_json())
            np.savez(FOLDER / "end.npz", step=state.step, plan=plan, **model.weights())

    train(state)


if __name__ == "__main__":
    main()
