"""Steps that fail, or whose data end, when some weights have been updated."""

import contextlib
import time
from collections.abc import Callable, Container, Sequence
from typing import Any

import models
import tensorflow as tf
from harness import FOLDER, RANK, SIZE

from sharded_cases.common import Network, await_files, cases, decorated, different, inputs_of
from sharded_cases.gathers import await_pending_gathers, interrupted
from tf_libra.runtime import grappler

NUM_BATCHES = 2
# Longer than an update of a few weights takes, which nothing in the step may wait for.
_SECONDS = 0.2


def in_two_parts(network: Network, next_batch: Callable[..., Any]) -> Callable[..., None]:
    """Returns a step that updates the last four weights, and by another batch the others.

    Args:
        network: its optimizer has a slot for each weight.
        next_batch: returns inputs and labels, in the step, given its arguments.
    """

    def loss(inputs: tf.Tensor, labels: tf.Tensor, values: Sequence[Any]) -> tf.Tensor:
        hidden = inputs
        for layer in range(0, len(values), 2):
            hidden = tf.tanh(hidden @ values[layer] + values[layer + 1])
        return models.cross_entropy(labels, hidden)

    def update(gradients: list[tf.Tensor], numbers: Sequence[int]) -> list[tf.Operation]:
        """Returns the ops that update slots."""
        updates = []
        for number, gradient in zip(numbers, gradients, strict=True):
            slot = network.optimizer.variables[number].value
            updates.append(slot.assign(0.9 * slot + gradient).op)
            network.weights[number].value.assign_sub(0.1 * slot)
        return updates

    def step(*arguments: Any) -> None:
        variables = [weight.value for weight in network.weights]
        before = [tf.identity(variable) for variable in variables]
        with tf.GradientTape() as tape:
            value = loss(*next_batch(*arguments), [*before[:2], *variables[2:]])
        updates = update(tape.gradient(value, variables[2:]), range(2, len(variables)))
        with tf.control_dependencies(updates):
            delayed = tf.py_function(lambda: time.sleep(_SECONDS), [], [])
        with tf.control_dependencies([delayed]):
            inputs, labels = next_batch(*arguments)
        with tf.GradientTape() as tape:
            value = loss(inputs, labels, [*variables[:2], *before[2:]])
        update(tape.gradient(value, variables[:2]), range(2))

    return step


def failed_in_step(ranks: Container[int]) -> Any:
    """Fails on these ranks when all ranks have updated their parts of some weights."""
    number, calls = 0, 0

    def fail() -> None:
        nonlocal calls
        calls += 1
        if RANK in ranks and number == NUM_BATCHES and calls % 2 == 0:
            raise ValueError("in the middle of a step")

    def passed(inputs: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.control_dependencies([tf.py_function(fail, [], [])]):
            return tf.identity(inputs), labels

    ours, theirs = Network("written"), Network("written")
    step, other = (
        decorated(network, shard, in_two_parts(network, passed))
        for network, shard in ((ours, "overlap"), (theirs, False))
    )
    for number in range(NUM_BATCHES):
        other(*inputs_of(number))
        step(*inputs_of(number))
    sharded = [group.is_sharded for group in grappler.report(step.plan).latest.groups]
    number, error = NUM_BATCHES, ""
    try:
        step(*inputs_of(number))
    except (RuntimeError, tf.errors.OpError) as raised:
        error = type(raised).__name__
    return {"error": error, "different": different(ours, theirs), "sharded": sharded}


@cases
def failed_alone() -> Any:
    """Fails on rank 0 while rank 1, which is in the step, delays the gathers of all others."""
    ours, theirs = Network("written"), Network("written")
    number = 0

    def fail_or_wait() -> None:
        if number == NUM_BATCHES and RANK == 0:
            await_pending_gathers()
            raise ValueError("in the middle of a step")
        if number == NUM_BATCHES and RANK == 1:
            await_files("failed", [0])

    step = interrupted(ours, "overlap", fail_or_wait, first=2 * (RANK != 1))
    other = interrupted(theirs, False, lambda: None)
    for number in range(NUM_BATCHES):
        other(*inputs_of(number))
        step(*inputs_of(number))
    number, found = NUM_BATCHES, []
    slot, weight = ours.optimizer.variables[0].value, ours.weights[0].value
    # The last rank's step ends before the others fail.
    for access in (lambda: step(*inputs_of(number)), slot.numpy, weight.numpy):
        try:
            access()
        except (RuntimeError, tf.errors.OpError) as raised:
            found.append(type(raised).__name__)
            if RANK == 0:
                (FOLDER / f"failed.{RANK}").touch()
    return {"errors": found, "different": different(ours, theirs)}


cases.add("failed_in_step", lambda: failed_in_step({0}))
cases.add("failed_in_step_of_all", lambda: failed_in_step(range(SIZE)))


@cases
def end_of_data() -> Any:
    """Reads batches inside of steps; the last one updates some weights, when the data end."""
    network = Network("written")
    step = decorated(network, "overlap", in_two_parts(network, next))
    found = []
    for _ in range(2):
        parts = zip(*map(inputs_of, range(2 * NUM_BATCHES + 1)), strict=True)
        iterator = iter(tf.data.Dataset.from_tensor_slices(tuple(map(tf.stack, parts))))
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                step(iterator)
        found.append([weight.numpy().tobytes().hex() for weight in network.weights])
    sharded = [group.is_sharded for group in grappler.report(step.plan).latest.groups]
    return {"weights": found, "sharded": sharded, "explained": step.explain()}
