"""The last rank is lost in its fourth step, as `deaths.py HOW PLAN.json` says; the others tell.

TF_LIBRA_JOB_ENGINE is the engine, lanes where it is not set.

HOW is one of
  kill: SIGKILL in the middle of a step, under a plan; a process that it has forked lives on.
  kill-reduce: the same once the first gradient of the step is reduced, the others are under way.
  kill-sparse: the same, with a gradient of megabytes under way, of which most blocks are zeros.
  kill-connecting: the same once all ranks know where the others listen, and the others connect,
    before it connects to any; kill-connecting-0 is that of rank 0.
  kill-growing: the same with lanes that are added for a second function.
  kill-tracing: the same while its first step is traced, and the others compare.
  kill-tuning: the same in a step that measures.
  exit: the process ends without an error between two steps.
  fail: the same by an error of the script.
  leave: the interpreter ends while another thread of it is in the middle of a step.
  stuck: the same where what follows an all-reduce holds the engine's own thread, and never returns.
  interrupt: Ctrl-C in the middle of a step.
  raise: the step's own code raises while it runs.
  stop: SIGSTOP in the middle of a step; the others wait for 3 seconds.
  wait: SIGSTOP in the middle of a step; the others warn, and wait.
  rejected: its environment holds a wrong value, before it meets the others.
  late: SIGSTOP, and SIGCONT once the others have warned; all goes on.
  cut: it waits, in the middle of a step, for what happens to its network.
  slow: the same with a gradient of megabytes; no rank is lost.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, write_json

import tf_libra
from tf_libra.backends import engine as engine_lib
from tf_libra.backends import nccl_environment

HOW, PLAN_FILE = sys.argv[1:]
FATAL_STEP = 4
# Columns of a variable that `slow` and `kill-sparse` have more than the others, and those that the
# loss depends on.
WIDTH = 1 << 16
USED = WIDTH // 50 if HOW == "kill-sparse" else WIDTH
USES = 1200
# From the last rank's fatal step to that of the others: a thousand times what its ops take.
HEAD_START_SECONDS = 4.0
LAST = SIZE - 1
LOST = 0 if HOW == "kill-connecting-0" else LAST
ONCE_REDUCED = ("kill-reduce", "kill-sparse")


def wait_for(name: str) -> None:
    """Returns once the test, or another rank, has made a file of this name."""
    while not (FOLDER / name).exists():
        time.sleep(0.05)


def happen() -> None:
    """Makes the failure that HOW names happen on the last rank."""
    child = 0
    if HOW == "kill":
        child = os.fork()
        if child == 0:  # as one that loads data
            while True:
                time.sleep(1)
    write_json("incident", {"pid": os.getpid(), "child": child, "time": time.time()})
    if HOW.startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif HOW in ("stop", "late", "wait"):
        # To this very thread, which else may go on until another one has taken it.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    elif HOW == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    elif HOW == "raise":
        raise ValueError("the image cannot be decoded")
    elif HOW == "leave":
        in_the_middle.set()
        time.sleep(600)
    elif HOW in ("cut", "slow"):
        wait_for("go-on")


in_the_middle = threading.Event()


def incident(number: Any) -> Any:
    """Within the step, before its loss is computed."""
    if HOW == "stuck" and RANK != LAST and int(number) == FATAL_STEP:
        # Only where the last rank waits for an all-reduce does its lane run what follows. If the
        # others are faster, TensorFlow's thread finds the result there and runs it all.
        wait_for(f"incident.{LAST}.json")
        time.sleep(HEAD_START_SECONDS)
    if RANK == LAST and int(number) == FATAL_STEP and HOW not in ONCE_REDUCED:
        happen()
    return number


def reduced(gradient: Any, number: Any) -> Any:
    """Within the step, with the first of its gradients reduced."""
    if RANK == LAST and int(number) == FATAL_STEP and HOW in ONCE_REDUCED:
        happen()
    return gradient


class Model(models.HandWritten):
    def step(self, inputs: tf.Tensor, labels: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        if HOW == "kill-tracing" and RANK == LAST:
            happen()
        self.number = tf.py_function(incident, [number], tf.int32)
        with tf.control_dependencies([self.number]):
            return super().step(tf.identity(inputs), labels)

    def update(self, gradients: Any) -> None:
        gradients = list(gradients)
        place = -2 if isinstance(self, Wide) else -1  # before the long one
        first = tf.py_function(reduced, [gradients[place], self.number], gradients[place].dtype)
        gradients[place] = tf.ensure_shape(first, gradients[place].shape)
        super().update(gradients)


class Wide(models.HandWritten):
    """One variable more, whose gradient is long."""

    def __init__(self, dtype: str, optimizer: str) -> None:
        super().__init__(dtype, optimizer)
        weights = np.random.default_rng(8).normal(size=(models.FEATURES, WIDTH))
        self.variables.append(tf.Variable(weights.astype(dtype), name="wide"))

    def loss(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        *layers, wide = variables = self.variables
        self.variables = layers
        loss = super().loss(inputs, labels)
        self.variables = variables
        return loss + tf.reduce_mean(tf.reduce_sum(tf.nn.tanh(inputs @ wide[:, :USED]), axis=1))


class WideModel(Model, Wide):
    pass


class Stuck(Model):
    """A model whose uses of a reduced gradient never return, and are too many for a thread's queue.

    The queue of TensorFlow's thread holds 1,024; a thread that finds it full runs the rest itself,
    here the lane. All ranks have the same graph, so that none waits long for another one's graph
    to be built.
    """

    def update(self, gradients: Any) -> None:
        uses = [
            tf.numpy_function(stay, [gradients[-1], self.number], tf.float32, stateful=False)
            for _ in range(USES)
        ]
        average = tf.reshape(tf.add_n(uses), gradients[-1].shape) / USES
        super().update([*gradients[:-1], average])


def stay(gradient: Any, number: Any) -> Any:
    if RANK == LAST and number == FATAL_STEP:
        if Path("/proc/thread-self/comm").read_text().startswith("libra lane"):
            in_the_middle.set()
        time.sleep(600)
    return gradient


def or_die(connect: Any) -> Any:
    """In place of a function that connects, where all ranks know each other's addresses."""

    def connect_or_die(*args: Any) -> Any:
        if RANK != LOST:
            write_json("connecting", None)
            return connect(*args)
        for rank in {*range(SIZE)} - {LOST}:
            wait_for(f"connecting.{rank}.json")  # it has left the exchange of addresses
        return happen()

    return connect_or_die


def train_slowly(step: Any, model: Wide) -> None:
    """Tells when each step was under way, and how far the weights are from those of one process."""
    seconds = []
    alone = Wide("float32", "sgd")
    for number in range(1, 8):
        joint = models.batch(number, SIZE, "float32")
        begin = time.monotonic()
        step(*models.part(joint, RANK, SIZE), tf.constant(number))
        seconds.append((begin, time.monotonic()))
        alone.step(*joint)
    ours, expected = model.weights(), alone.weights()
    error = max(float(np.abs(ours[name] - expected[name]).max()) for name in ours)
    write_json("slow", {"seconds": seconds, "error": error})


def is_whole(model: Wide, before: dict[str, Any], joint: Any) -> bool:
    """Returns whether the last variable has its value of before a step or of after the step."""
    *_, (name, now) = model.weights().items()
    if np.array_equal(now, before[name]):
        return True
    alone = Wide("float32", "sgd")
    for variable in alone.variables:
        variable.assign(before[variable.name.split(":")[0]])
    alone.step(*joint)
    return bool(np.allclose(now, alone.weights()[name], rtol=0, atol=1e-5))


def train(step: Any, model: models.HandWritten, result: dict[str, Any]) -> None:
    for number in range(1, 8):
        if RANK == LAST and number == FATAL_STEP:
            if HOW == "exit":
                return
            if HOW == "fail":
                raise LookupError("no such file of images")
        joint = models.batch(number, SIZE, "float32")
        inputs, labels = models.part(joint, RANK, SIZE)
        before = model.weights()
        try:
            step(inputs, labels, tf.constant(number))
            result["done"] += 1
        except Exception as error:
            result["errors"].append(f"{type(error).__name__}: {error}")
            result["times"].append(time.time())
            if isinstance(model, Wide):
                result.setdefault("whole", is_whole(model, before, joint))
            write_json("deaths", result | {"phase": str(step.phase)})
            if len(result["errors"]) == 2:
                # As a training script ends that does not catch it.
                raise
    write_json("deaths", result | {"phase": str(step.phase)})


def main() -> None:
    hvd.init()
    if HOW.startswith("kill-connecting"):
        engine_lib.connect = or_die(engine_lib.connect)
    if HOW == "kill-growing":
        first = models.HandWritten("float32", "sgd")
        plan = models.plan_of(first.variables, SIZE, [0, len(first.variables)], [1])
        inputs, labels = models.part(models.batch(0, SIZE, "float32"), RANK, SIZE)
        tf_libra.optimize(plan=plan)(tf.function(first.step))(inputs, labels)
        engine_lib.Engine.grow = or_die(engine_lib.Engine.grow)  # type: ignore[method-assign]
    if HOW == "stuck":
        tf.config.threading.set_inter_op_parallelism_threads(1)
    kinds = {"slow": WideModel, "kill-sparse": WideModel, "stuck": Stuck}
    model = kinds.get(HOW, Model)("float32", "sgd")
    options: dict[str, Any] = {"plan": PLAN_FILE}
    if HOW in ("kill-tuning", "kill-tracing"):
        options = {"strategy": tf_libra.strategies.Libra(threads=(1, 2))}
    if HOW == "rejected":
        options = {"strategy": "libra"}
        if RANK == LAST:  # what lanes and what Horovod's control find wrong before ranks meet
            os.environ |= {
                "TF_LIBRA_PORTS": "none",
                "NCCL_TUNER_PLUGIN": str(nccl_environment.PATH),
            }
    options["engine"] = os.environ.get("TF_LIBRA_JOB_ENGINE", "lanes")
    if HOW in ("stop", "leave"):
        options["timeout_seconds"] = 15.0
    if HOW == "stuck":
        options["timeout_seconds"] = 20.0  # its graph takes a while
    if HOW in ("late", "wait"):
        options["faults"] = tf_libra.Faults(stall_warn_seconds=0.5)
    step = tf_libra.optimize(**options)(tf.function(model.step))
    if HOW == "slow":
        return train_slowly(step, model)
    result: dict[str, Any] = {"done": 0, "errors": [], "times": []}
    if HOW in ("leave", "stuck") and RANK == LAST:
        threading.Thread(target=train, args=(step, model, result), daemon=True).start()
        in_the_middle.wait()
        return
    train(step, model, result)


if __name__ == "__main__":
    main()
