"""Trains under Horovod's elastic mode while workers come and go.

`elastic.py PLAN.json ENGINE [joined] [sharded]`; "joined" takes the batches by `tf_libra.join`,
"sharded" lets each rank update its part of weights.

Every rank has the same data, so that weights do not depend on how many there are. The first four
workers stop after ten steps until the test lets them go on; the job ends eight steps after there
are four workers again.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import FOLDER
from horovod.common.exceptions import HorovodInternalError

import tf_libra
import tf_libra.elastic

HELD_STEP = 10
COMMIT_EVERY = 3
WORLD_SIZE = 4
MORE_STEPS = 8
FEWER = 2  # batches of rank 1 in the end, if batches are joined


def note(document: dict[str, Any]) -> None:
    """A line of this process's own file."""
    with (FOLDER / f"steps.{os.getpid()}.txt").open("a") as file:
        file.write(json.dumps(document) + "\n")


def main() -> None:
    hvd.init()
    is_joined = "joined" in sys.argv
    model = models.HandWritten("float64", "momentum")
    # Made for four workers.
    step = tf_libra.optimize(
        tf_libra.strategies.Libra(threads=(1, 2)),
        plan=sys.argv[1],
        engine=sys.argv[2],
        max_tuning_steps=4,
        shard_updates="overlap" if "sharded" in sys.argv else "auto",
    )(tf.function(model.step))
    state = tf_libra.elastic.TensorFlowState([*model.variables, *model.slots], step=0)

    def train_once(state: Any) -> None:
        last = None
        if hvd.size() == WORLD_SIZE and state.step >= COMMIT_EVERY:
            last = state.step + MORE_STEPS - (FEWER if is_joined and hvd.rank() == 1 else 0)

        def batches() -> Iterator[Any]:
            while state.step != last:
                while state.step == HELD_STEP and not (FOLDER / "go-on").exists():
                    time.sleep(0.05)
                yield models.batch(state.step, 1, "float64")

        for batch in tf_libra.join(batches()) if is_joined else batches():
            step(*batch)
            state.step += 1
            note({"step": state.step, "size": hvd.size(), "phase": str(step.phase)})
            if state.step % COMMIT_EVERY == 0:
                state.commit()
        if "sharded" in sys.argv:
            assert "its part of 6 gradients" in " ".join(step.explain().split())
        if hvd.rank() == 0:
            plan = np.array(step.plan.to_json())
            np.savez(FOLDER / "end.npz", step=state.step, plan=plan, **model.weights())

    @hvd.elastic.run
    def train(state: Any) -> None:
        try:
            train_once(state)
        except HorovodInternalError as error:
            note({"error": f"{type(error).__name__}: {error}"})
            raise

    train(state)


if __name__ == "__main__":
    main()
