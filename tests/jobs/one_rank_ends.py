"""Reads variables of a rank that has left, or trains until it is lost: `one_rank_ends.py HOW`.

Rank 0 trains for both ranks, and then leaves. HOW is one of
  end: its script ends.
  stages: its script ends, and it has trained the one or the other stage alone.
  fail: its script raises.
  kill: SIGKILL.
  stop: SIGSTOP, until rank 1 has read.
  switch: SIGKILL while `auto` changes from it to data parallelism, between two variables.
"""

import os
import signal
import sys
import time
from typing import Any
from unittest import mock

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1"  # that of users

import tensorflow as tf
from forced_families import every_family_in_trials
from harness import FOLDER, RANK, write_json

import tf_libra
from tests.worker_processes import DEADLINE_SECONDS, state, wait_until
from tf_libra.model_parallel.execution.stage_variables import StageVariables
from tf_libra.model_parallel.runtime import one_rank_planner
from tf_libra.runtime.family_trials import Turns
from tf_libra.specs.one_rank import OneRankPlan
from tf_libra.strategies import Auto, OneRank, Spp

[HOW] = sys.argv[1:]
PID = FOLDER / "pid"
MAX_STEPS = 200


def has_left() -> bool:
    """Returns whether rank 0's process is gone, a zombie, or stopped."""
    return state(int(PID.read_text())) in ("", "Z", "T")


def in_stages(first: tf.Variable, second: tf.Variable) -> Any:
    """Returns a step with a variable in each of two stages."""

    @tf_libra.optimize(Spp(num_microbatches=2, num_stages=2))
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


def attempt(call: Any, result: dict[str, Any]) -> None:
    """Records the value that a call returns, or its error and when it was raised."""
    try:
        result["values"].append(tf.convert_to_tensor(call()).numpy().tolist())
    except Exception as error:
        result["errors"].append([type(error).__name__, str(error)])
        result["times"].append(time.time())


def train_until_lost(step: Any, result: dict[str, Any]) -> None:
    """Trains through trials, until rank 0 dies once one of two variables has reached rank 1."""
    synchronize, record = StageVariables._synchronize, Turns.record
    turns: list[str] = []
    synchronized: list[str] = []
    received = FOLDER / "received"

    def note(trials: Turns, seconds: float) -> None:
        turns.append(trials.next)
        record(trials, seconds)

    def synchronize_or_die(holding: Any, variable: Any, *args: Any) -> None:
        if "one-rank" in turns:
            synchronized.append(variable.name)
            if RANK == 1 and len(synchronized) == 2:
                received.touch()
            if RANK == 0 and len(synchronized) == 2:
                wait_until(received.exists, DEADLINE_SECONDS)  # what is sent may be on its way
                write_json("incident", time.time())
                os.kill(os.getpid(), signal.SIGKILL)
        synchronize(holding, variable, *args)

    def train() -> Any:
        for _ in range(MAX_STEPS):
            result["done"] += 1
            step(tf.ones([2, 2]))

    with (
        every_family_in_trials("one-rank"),
        mock.patch.object(one_rank_planner, "fastest_rank_plan", lambda _: OneRankPlan(0, 2)),
        mock.patch.object(Turns, "record", note),
        mock.patch.object(StageVariables, "_synchronize", synchronize_or_die),
    ):
        attempt(train, result)
        attempt(lambda: step(tf.ones([2, 2])), result)
    result["synchronized"] = synchronized


def main() -> None:
    weight, other = tf.Variable([1.0, 2.0], name="weight"), tf.Variable(0, name="count")
    options: dict[str, Any] = {"timeout_seconds": 10.0} if HOW == "stop" else {}
    strategy: Any = OneRank(rank=0)
    if HOW == "switch":
        strategy = Auto(threads=(1,), streams=(1,), families=("one-rank",))
        options["max_tuning_steps"] = 8

    @tf_libra.optimize(strategy, **options)
    @tf.function
    def step(values: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * values)
        weight.assign_sub(2 * tape.gradient(loss, weight))
        other.assign_add(1)
        return loss

    result: dict[str, Any] = {"errors": [], "values": [], "times": [], "done": 0}
    if HOW == "switch":
        train_until_lost(step, result)
        write_json("result", result)
        return
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
    elif HOW in ("kill", "stop"):
        wait_until(done.exists, DEADLINE_SECONDS)
    if RANK == 0:
        if HOW == "fail":
            raise ValueError("the disk is full")
        if HOW in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if HOW == "kill" else signal.SIGSTOP)
        return
    wait_until(has_left, DEADLINE_SECONDS)
    began = time.time()
    for read in (weight.numpy, lambda: tf.raw_ops.Identity(input=weight), other.numpy):
        attempt(read, result)
    result["seconds"] = [moment - began for moment in result.pop("times")]
    write_json("result", result)
    if HOW == "stop":
        os.kill(int(PID.read_text()), signal.SIGCONT)


main()
