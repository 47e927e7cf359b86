"""Faults that two workers survive, one after the other: `faults.py PLAN.json`. Lanes use TCP."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, Cases, barrier, resident_bytes, write_json

import tf_libra
import tf_libra.elastic
from tf_libra.backends import engine as engine_lib
from tf_libra.coordination import horovod_job

cases = Cases()
PLAN_FILE = sys.argv[1]
LAST = SIZE - 1


def shard(number: int = 0, dtype: str = "float32") -> tuple[Any, Any]:
    return models.part(models.batch(number, SIZE, dtype), RANK, SIZE)


def wait_for(name: str) -> None:
    """Returns once the test has made a file of this name."""
    while not (FOLDER / name).exists():
        time.sleep(0.05)


def attempt(step: Any, *args: Any) -> str | None:
    """Returns the text of the error that a step raises; None if it raises none."""
    try:
        step(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@contextmanager
def late_to_connect(seen: dict[str, Any]) -> Iterator[None]:
    """The last rank connects only once the test says so; the others' listeners wait for it."""
    listen, connect = engine_lib.listen, engine_lib.connect

    def listening(*place: Any) -> engine_lib.Address:
        address = listen(*place)
        write_json("listening", [address.host, address.port])
        return address

    def connecting(*args: Any) -> engine_lib.Engine:
        if RANK == LAST:
            wait_for("connect")
        before = resident_bytes()
        engine = connect(*args)
        seen["grown"] = resident_bytes() - before
        return engine

    engine_lib.listen, engine_lib.connect = listening, connecting
    try:
        yield
    finally:
        engine_lib.listen, engine_lib.connect = listen, connect


@cases
def strangers() -> Any:
    """Strangers connect before and during training; training is the same as without them."""
    seen: dict[str, Any] = {}
    model = models.HandWritten("float64", "sgd")
    step = tf_libra.optimize("wfbp")(tf.function(model.step))
    with late_to_connect(seen):
        step(*shard(0, "float64"))
    for number in range(1, 4):
        step(*shard(number, "float64"))
    write_json("training", {})
    wait_for("strangers-were-there")
    for number in range(4, 8):
        step(*shard(number, "float64"))
    alone = models.HandWritten("float64", "sgd")
    for number in range(8):
        alone.step(*models.batch(number, SIZE, "float64"))
    ours, expected = model.weights(), alone.weights()
    seen["error"] = max(float(np.abs(ours[name] - expected[name]).max()) for name in ours)
    return seen


class WithTable(models.HandWritten):
    """A model with one more variable, whose number of rows is unknown when the step is traced."""

    def __init__(self) -> None:
        super().__init__("float32", "sgd")
        shape = tf.TensorShape([None, 5])
        self.table = tf.Variable(np.ones((4, 5), "float32"), shape=shape, name="table")

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        variables = [*self.variables, self.table]
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels) + tf.reduce_sum(self.table**2)
        gradients = tape.gradient(loss, variables)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss


@cases
def size_differs_at_run_time() -> Any:
    model = WithTable()
    step = tf_libra.optimize("wfbp")(tf.function(model.step))
    for number in range(3):
        step(*shard(number))
    rows = 6 if RANK == LAST else 4
    model.table.assign(np.ones((rows, 5), "float32"))
    return [attempt(step, *shard(3)), attempt(step, *shard(4))]


@cases
def size_differs_after_a_retrace() -> Any:
    """The last rank has something to compare, the others know their gradients already."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(plan=PLAN_FILE)(tf.function(model.step))
    for number in range(3):
        step(*shard(number))
    if RANK == LAST:
        shapes = {0: (models.FEATURES, 17), 1: (17,), 2: (17, 9)}
        for index, shape in shapes.items():
            name = model.variables[index].name.split(":")[0]
            model.variables[index] = tf.Variable(np.zeros(shape, "float32"), name=name)
    inputs, labels = shard(3)
    return [attempt(step, inputs[:3], labels[:3]), attempt(step, inputs[:3], labels[:3])]


@cases
def another_version_is_installed() -> Any:
    """On the last rank, and found by what looks for versions of packages."""
    folder = FOLDER / "site" / "tf_libra-99.0.dist-info"
    if RANK == LAST:
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tf-libra\nVersion: 99.0\n")
        sys.path.insert(0, str(folder.parent))
    try:
        model = models.HandWritten("float32", "sgd")
        step = tf_libra.optimize(plan=PLAN_FILE)(tf.function(model.step))
        return [attempt(step, *shard()), attempt(step, *shard())]
    finally:
        if RANK == LAST:
            sys.path.remove(str(folder.parent))


@cases
def another_tensorflow() -> Any:
    """One rank says that it runs another; that it would work otherwise is not in question."""
    version = tf.__version__
    if RANK == LAST:
        tf.__version__ = "2.99.0"
    try:
        model = models.HandWritten("float32", "sgd")
        step = tf_libra.optimize(plan=PLAN_FILE)(tf.function(model.step))
        return [attempt(step, *shard()), attempt(step, *shard())]
    finally:
        tf.__version__ = version


@cases
def port_is_taken() -> Any:
    """A program that knows nothing of ranks answers at the address that rank 0 announces."""
    listen = engine_lib.listen
    if RANK == 0:
        program = engine_lib.Address("127.0.0.1", int(os.environ["TF_LIBRA_JOB_PORT"]))
        engine_lib.listen = lambda *place: (listen(*place), program)[1]
    try:
        model = models.HandWritten("float32", "sgd")
        step = tf_libra.optimize(plan=PLAN_FILE)(tf.function(model.step))
        return attempt(step, *shard())
    finally:
        engine_lib.listen = listen


@cases
def another_world_size() -> Any:
    """One rank believes that there are three."""
    world = horovod_job.world
    if RANK == LAST:
        horovod_job.world = lambda: replace(world(), size=SIZE + 1)
    try:
        model = models.HandWritten("float32", "sgd")
        step = tf_libra.optimize("wfbp")(tf.function(model.step))
        return [attempt(step, *shard()), attempt(step, *shard())]
    finally:
        horovod_job.world = world


@cases
def runs_out_of_data() -> Any:
    """The last rank has no more data than for three steps, and does something else then."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(plan=PLAN_FILE, timeout_seconds=15.0)(tf.function(model.step))
    state = tf_libra.elastic.TensorFlowState(model.variables, step=0)
    result: dict[str, Any] = {"errors": []}
    for number in range(3 if RANK == LAST else 4):
        if number == 2:
            state.save()
            committed = model.weights()
        error = attempt(step, *shard(number))
        if error is None:
            state.step = number + 1
        else:
            result["errors"].append(error)
    barrier()  # the others have waited for long enough
    if RANK == LAST:
        result["errors"].append(attempt(step, *shard(3)))
    trained = model.weights()
    # Any other call, too.
    result["errors"].append(attempt(step, *shard(3)))
    other = models.HandWritten("float32", "sgd")
    replanned = tf_libra.optimize(plan=PLAN_FILE)(tf.function(other.step))
    result["errors"].append(attempt(replanned, *shard(3)))
    result["explained"] = step.explain()
    state.restore()
    result["step"] = state.step
    restored = model.weights()
    result["restored"] = all(np.array_equal(restored[k], committed[k]) for k in restored)
    result["moved"] = not all(np.array_equal(restored[k], trained[k]) for k in restored)
    return result


def main() -> None:
    hvd.init()
    cases.run()
    print(json.dumps("through"), flush=True)


if __name__ == "__main__":
    main()
