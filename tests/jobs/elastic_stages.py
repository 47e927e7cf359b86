"""Trains in stages under Horovod's elastic mode, with changing workers: `elastic_stages.py KIND`.

Of the elastic state, KIND is one of
  ours: `tf_libra.elastic.TensorFlowState`.
  released: the same, where ranks free what other stages alone need.
  horovod: `hvd.elastic.TensorFlowState`, with which a job can only shrink; ranks free the same.

The joint batch of a step is the same, however many workers share it. The first four workers stop
after ten steps until the test lets them go on. The two that are left commit nothing, and only look
whether others have come. The job ends eight steps after there are four workers again; with
Horovod's state, eight steps after there are two.
"""

import os
import sys
import time
from collections.abc import Iterable
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from elastic import COMMIT_EVERY, HELD_STEP, MORE_STEPS, WORLD_SIZE, note
from harness import FOLDER
from layer_stack import Stack, batch

import tf_libra
import tf_libra.elastic

LAST_SIZE = {"horovod": WORLD_SIZE // 2}


def own(joint: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Returns this rank's shard of a batch, for the present number of ranks."""
    return [tf.split(tensor, hvd.size())[hvd.rank()] for tensor in joint]


def state_of(kind: str, variables: list[tf.Variable]) -> Any:
    if kind == "horovod":
        return hvd.elastic.TensorFlowState(variables, step=0)
    return tf_libra.elastic.TensorFlowState(variables, step=0)


def main() -> None:
    hvd.init()
    [kind] = sys.argv[1:]
    stack = Stack()
    strategy = tf_libra.strategies.Spp(
        num_microbatches=2, num_stages=2, release_variables=kind != "ours"
    )
    step = tf_libra.optimize(strategy)(tf.function(stack.step))
    state = state_of(kind, [*stack.weights, *stack.momenta])

    @hvd.elastic.run
    def train(state: Any) -> None:
        last = None
        if hvd.size() == LAST_SIZE.get(kind, WORLD_SIZE) and state.step >= COMMIT_EVERY:
            last = state.step + MORE_STEPS
        while state.step != last:
            while state.step == HELD_STEP and not (FOLDER / "go-on").exists():
                time.sleep(0.05)
            try:
                step(*own(batch(state.step)))
            except Exception as error:
                note({"error": f"{type(error).__name__}: {error}"})
                raise
            state.step += 1
            stages = [list(stage.devices) for stage in step.plan.stages]
            note({"step": state.step, "size": hvd.size(), "stages": stages})
            if hvd.size() < WORLD_SIZE:
                state.check_host_updates()
            elif state.step % COMMIT_EVERY == 0:
                state.commit()
        state.save()
        stack.write(FOLDER / f"end.{os.getpid()}.npz", state.step)

    train(state)


if __name__ == "__main__":
    main()
