"""Weights that are gathered after a call: their readers, failures, and the end of a rank."""

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import harness
import keras
import tensorflow as tf
from harness import FOLDER, RANK, SIZE

from sharded_cases.common import (
    SHAPES,
    Network,
    await_files,
    cases,
    decorated,
    different,
    different_weights,
    inputs_of,
)
from tf_libra.internal import native
from tf_libra.runtime import grappler


def interrupted(
    network: Network, shard: bool | str, call: Callable[[], None], first: int = 0
) -> Any:
    """Returns a step that makes a call between the updates of slots and those of weights.

    Args:
        network: has a slot for each weight.
        shard: as for `decorated`.
        call: the call.
        first: first weight whose update waits for the call.
    """

    def apply(gradients: list[tf.Tensor], weights: list[keras.Variable]) -> None:
        slots = [slot.value for slot in network.optimizer.variables]
        updated = [
            slot.assign_add(gradient) for slot, gradient in zip(slots, gradients, strict=True)
        ]
        with tf.control_dependencies([variable.op for variable in updated]):
            called = tf.py_function(call, [], [])
        for number, (weight, slot) in enumerate(zip(weights, slots, strict=True)):
            with tf.control_dependencies([called] if number >= first else []):
                weight.value.assign_sub(0.1 * slot)

    network.optimizer.apply = apply
    return decorated(network, shard)


def await_pending_gathers() -> None:
    """Waits until this rank gathers weights in the background."""
    deadline = time.monotonic() + 60.0
    while native.load().c.TfLibraAwaitGathers(0.0) == 0:
        assert time.monotonic() < deadline, "no weight is gathered"
        time.sleep(0.01)


def killed() -> Any:
    """Kills rank 1 when the weights of the first group are gathered, before the others are."""
    network, other = Network("written"), Network("written")

    def die() -> None:
        if RANK == 1 and number == 2:
            time.sleep(0.5)  # for the first gather
            os.kill(os.getpid(), signal.SIGKILL)

    step = interrupted(network, "overlap", die, first=2)
    whole = interrupted(other, False, lambda: None)
    for number in range(2):
        whole(*inputs_of(number))
    for number in range(3):
        step(*inputs_of(number))
        sharded = [group.is_sharded for group in grappler.report(step.plan).latest.groups]
        harness.write_json("sharded", sharded)
    weights = [weight.value for weight in network.weights]
    slot = network.optimizer.variables[0].value
    errors = []
    for access in (weights[0].numpy, slot.numpy, lambda: step(*inputs_of(3)), slot.numpy):
        try:
            access()
        except (RuntimeError, tf.errors.OpError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    return {
        "errors": errors,
        "slot": slot.name.partition(":")[0],
        "different": different_weights(network, other),
    }


def left() -> Any:
    """Ends the scripts of ranks 1 and 2, by a signal and an exit, while rank 0 is in a step."""
    ours, theirs, step, other = pair(Delay("left"))
    for number in range(2):
        other(*inputs_of(number))
    for number in range(2):
        step(*inputs_of(number))
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGINT)
    if RANK == 2:
        raise SystemExit(3)
    error = ""
    try:
        step(*inputs_of(2))
    except (RuntimeError, tf.errors.OpError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    return {"error": error, "different": different(ours, theirs)}


def killed_in_sums() -> Any:
    """Kills rank 1 when gradients are reduced, before norms are added over ranks."""
    network = Network("written")

    def die() -> None:
        if RANK == 1 and number == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def apply(gradients: list[tf.Tensor], weights: list[keras.Variable]) -> None:
        with tf.control_dependencies([gradient.op for gradient in gradients]):
            called = tf.py_function(die, [], [])
        with tf.control_dependencies([called]):
            squares = [gradient * gradient for gradient in gradients]
        total = tf.add_n([tf.reduce_sum(square) for square in squares])
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.value.assign_sub(0.1 * gradient / (1 + total))

    network.optimizer.apply = apply
    step = decorated(network, True)
    for number in range(2):
        step(*inputs_of(number))
    exchanged = grappler.report(step.plan).latest.exchanged
    before = [weight.value.numpy() for weight in network.weights]
    number = 2
    error = None
    try:
        step(*inputs_of(number))
    except (RuntimeError, tf.errors.OpError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    after = [weight.value.numpy() for weight in network.weights]
    pairs = zip(before, after, strict=True)
    are_equal = [old.tobytes() == new.tobytes() for old, new in pairs]
    return {"error": error, "equal": are_equal, "exchanged": exchanged}


class Delay:
    """Delays the gathers of calls on rank 1, while it is on, until rank 0 allows them."""

    def __init__(self, name: str) -> None:
        self._name, self.is_on = name, False

    def wait(self) -> None:
        while RANK == 1 and self.is_on and not self._file.exists():
            time.sleep(0.01)

    def end(self) -> None:
        if RANK == 0:
            self._file.touch()

    @property
    def _file(self) -> Any:
        return FOLDER / f"{self._name}.go"


def pair(delay: Delay) -> tuple[Network, Network, Any, Any]:
    """Returns two equal networks, and their steps; a delay holds the gathers of the first one."""
    ours, theirs = Network("written"), Network("written")
    step = interrupted(ours, "overlap", delay.wait)
    return ours, theirs, step, interrupted(theirs, False, lambda: None)


def train(step: Any, other: Any, delay: Delay) -> None:
    """Calls both steps three times, the last time with a delay."""
    for number in range(3):
        other(*inputs_of(number))
    for number in range(3):
        delay.is_on = number == 2
        step(*inputs_of(number))


def readers(network: Network) -> dict[str, Callable[[], Any]]:
    """Returns functions that read weights, or write one of them, in different ways."""
    first, *_, last = (weight.value for weight in network.weights)
    data = tf.data.Dataset.range(1).map(lambda _: tf.identity(first))
    function = tf.function(lambda: tf.identity(first))
    path = str(FOLDER / f"read.{RANK}")

    def save() -> Any:
        tf.train.Checkpoint(one=first).write(path)
        return tf.train.load_variable(path, "one/.ATTRIBUTES/VARIABLE_VALUE")

    def rows() -> Any:
        return tf.raw_ops.ResourceGather(
            resource=first.handle, indices=tf.range(SHAPES[0][0]), dtype=first.dtype
        ).numpy()

    def increment() -> Any:
        last.assign_add(tf.zeros_like(last))
        return last.numpy()

    return {
        "numpy": first.numpy,
        "value": lambda: network.weights[0].numpy(),
        "function": lambda: function().numpy(),
        "data": lambda: next(iter(data)).numpy(),
        "save": save,
        "rows": rows,
        "increment": increment,
    }


@cases
def delayed() -> Any:
    """Reads weights while rank 1 has not begun to gather them."""
    delay = Delay("delayed")
    ours, theirs, step, other = pair(delay)
    found = readers(ours)
    for read in found.values():
        read()  # traces
    train(step, other, delay)
    is_pending = native.load().c.TfLibraAwaitGathers(0.0) != 0
    read: dict[str, Any] = {}
    begun = [threading.Event() for _ in found]

    def run(name: str, event: threading.Event) -> None:
        event.set()
        read[name] = found[name]()

    threads = [threading.Thread(target=run, args=pair) for pair in zip(found, begun, strict=True)]
    for thread in threads:
        thread.start()
    for event in begun:
        event.wait()
    finished = sorted(read) if is_pending else []
    delay.end()
    for thread in threads:
        thread.join()
    first, last = (theirs.weights[i].value.numpy() for i in (0, -1))
    wanted = dict.fromkeys(found, first) | {"increment": last}
    bits = [name for name in found if read[name].tobytes() != wanted[name].tobytes()]
    step(*inputs_of(3))
    other(*inputs_of(3))
    step.synchronize_variables()
    return {
        "pending": is_pending,
        "early": finished,
        "different": bits + different(ours, theirs),
    }


@cases
def read_in_call() -> Any:
    """Reads weights in a thread during a call that has updated some of them in part."""
    ours, theirs = Network("written"), Network("written")
    found: list[Any] = []
    has_begun = threading.Event()

    def read() -> None:
        has_begun.set()
        found.extend(weight.numpy() for weight in ours.weights)

    thread = threading.Thread(target=read)

    def begin() -> None:
        if number == 1:
            thread.start()
            has_begun.wait()
            time.sleep(0.1)  # in which the thread could read

    step = interrupted(ours, True, begin, first=3)
    other = interrupted(theirs, False, lambda: None)
    for number in range(2):
        other(*inputs_of(number))
    for number in range(2):
        step(*inputs_of(number))
    thread.join()
    pairs = zip(found, theirs.weights, strict=True)
    return [weight.path for value, weight in pairs if value.tobytes() != weight.numpy().tobytes()]


@cases
def failed_call() -> Any:
    """Calls a step with invalid inputs on rank 0 while weights are gathered."""
    delay = Delay("failed")
    ours, theirs, step, other = pair(delay)
    train(step, other, delay)
    threading.Timer(0.1, delay.end).start()
    inputs, labels = inputs_of(3)
    found = []
    if RANK > 0:
        found.append(different_weights(ours, theirs))
    try:
        step(inputs[:, 1:] if RANK == 0 else inputs, labels)
    except Exception as error:
        found.append(type(error).__name__)
    if RANK == 0:
        found.append(different_weights(ours, theirs))
    return found


def leave() -> None:
    """Ends rank 0 when its last call has returned, before weights are whole.

    Rank 1 reads nothing, and the last rank reads all when the others have left.
    """
    delay = Delay("leave")
    ours, theirs, step, other = pair(delay)
    train(step, other, delay)
    if RANK == 0:
        atexit.register(delay.end)  # before TF-Libra leaves
        return
    if RANK == SIZE - 1:
        await_files("left", range(RANK))
        harness.write_json("leave", different(ours, theirs))


for ending in (killed, killed_in_sums, left):
    if os.environ.get("TF_LIBRA_JOB_CASES") == ending.__name__:  # ends the job
        cases.add(ending.__name__, ending, ends_ranks=True)
