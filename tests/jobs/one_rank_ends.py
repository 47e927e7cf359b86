"""Reads variables of a rank that has left: `one_rank_ends.py HOW`.

Rank 0 trains for both ranks, and then leaves. HOW is one of
  end: its script ends.
  stages: its script ends, and it has trained the one or the other stage alone.
  fail: its script raises.
  kill: SIGKILL.
Rank 1 reads when rank 0 has closed its connections.
"""

import os
import signal
import sys
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1"  # that of users

import tensorflow as tf
from harness import FOLDER, RANK, write_json

import tf_libra
from tests.worker_processes import DEADLINE_SECONDS, state, wait_until

[HOW] = sys.argv[1:]
PID = FOLDER / "pid"


def has_left() -> bool:
    """Returns whether rank 0's process is gone, or a zombie."""
    return state(int(PID.read_text())) in ("", "Z")


def in_stages(first: tf.Variable, second: tf.Variable) -> Any:
    """Returns a step with a variable in each of two stages."""

    @tf_libra.optimize(tf_libra.strategies.Spp(num_microbatches=2, num_stages=2))
    @tf.function
    def step(values: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf_libra.boundary(first + values) + second)
        for variable, gradient in zip(
            (first, second), tape.gradient(loss, (first, second)), strict=True
        ):
            variable.assign_sub(2 * gradient)
        return loss

    return step


def main() -> None:
    weight, other = tf.Variable([1.0, 2.0]), tf.Variable(0)

    @tf_libra.optimize(tf_libra.strategies.OneRank(rank=0))
    @tf.function
    def step(values: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * values)
        weight.assign_sub(2 * tape.gradient(loss, weight))
        other.assign_add(1)
        return loss

    if HOW == "stages":
        other = tf.Variable([0.0, 0.0])
        step = in_stages(weight, other)

    if RANK == 0:
        PID.write_text(str(os.getpid()))
    for _ in range(3):
        step(tf.ones([2, 2]))
    done = FOLDER / "done"
    if RANK == 1:
        done.touch()
    elif HOW == "kill":
        wait_until(done.exists, DEADLINE_SECONDS)
    if RANK == 0:
        if HOW == "fail":
            raise ValueError("the disk is full")
        if HOW == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return
    wait_until(has_left, DEADLINE_SECONDS)
    result: dict[str, Any] = {"errors": [], "values": []}
    for read in (weight.numpy, lambda: tf.raw_ops.Identity(input=weight), other.numpy):
        try:
            result["values"].append(tf.convert_to_tensor(read()).numpy().tolist())
        except Exception as error:
            result["errors"].append([type(error).__name__, str(error)])
    write_json("result", result)


main()
