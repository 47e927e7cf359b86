"""Slots of which ranks hold parts, read and assigned by single ranks."""

import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from harness import FOLDER, RANK, SIZE

from sharded_cases.common import (
    NUM_STEPS,
    Network,
    await_files,
    cases,
    decorated,
    different,
    inputs_of,
    num_in_parts,
)
from sharded_cases.gathers import interrupted
from tf_libra.coordination.control_plane import EngineError
from tf_libra.variable_sync.slot_reads import SlotReads
from tf_libra.variable_sync.variable_access import variable_access


def decaying(network: Network, shard: bool | str, call: Callable[[], None]) -> Any:
    """Returns a step that changes slots, and makes a call, before it computes gradients."""

    def apply(gradients: list[tf.Tensor], weights: list[keras.Variable]) -> None:
        slots = network.optimizer.variables
        for gradient, weight, slot in zip(gradients, weights, slots, strict=True):
            slot.value.assign_add(gradient)
            weight.value.assign_sub(0.1 * slot.value)

    def step(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        slots = [slot.value for slot in network.optimizer.variables]
        decayed = [slot.assign(0.9 * slot) for slot in slots]
        with tf.control_dependencies([variable.op for variable in decayed]):
            called = tf.py_function(call, [], [])
        with tf.control_dependencies([called]):
            inputs = tf.identity(inputs)
        return network.step(inputs, labels)

    network.optimizer.apply = apply
    return decorated(network, shard, step)


@cases
def read_by_one_rank() -> Any:
    """Saves and reads slots on single ranks, while the others go on."""
    number = 0

    def begun() -> None:
        if number == 2 and RANK > 0:
            (FOLDER / f"begun.{RANK}").touch()

    ours, theirs = Network("written"), Network("written")
    other = decaying(theirs, False, lambda: None)
    step = decaying(ours, "overlap", begun)
    changed: list[str] = []
    wanted: list[Any] = []
    for number in range(NUM_STEPS):
        other(*inputs_of(number))
        if number == 1:
            wanted = [variable.numpy() for variable in theirs.variables()]
    for number in range(NUM_STEPS):
        step(*inputs_of(number))
        if number == 1 and RANK == 0:
            await_files("begun", range(1, SIZE))  # and have changed their parts
            path = str(FOLDER / "alone")
            tf.train.Checkpoint(variables=ours.variables()).write(path)
            found = Network("written")
            tf.train.Checkpoint(variables=found.variables()).read(path).assert_consumed()
            for network in (ours, found):
                pairs = zip(network.variables(), wanted, strict=True)
                changed += [v.name for v, value in pairs if v.numpy().tobytes() != value.tobytes()]
    in_parts = num_in_parts(ours.variables())
    if RANK == SIZE - 1:
        read = tf.function(lambda: [tf.identity(variable) for variable in ours.variables()])
        pairs = zip(read(), theirs.variables(), strict=True)
        changed += [v.name for value, v in pairs if value.numpy().tobytes() != v.numpy().tobytes()]

    def read_all() -> None:
        try:
            different(ours, theirs)
        except Exception as error:
            changed.append(repr(error))

    threads = [threading.Thread(target=read_all) for _ in range(3)]
    for thread in threads:  # read during the next step, or before
        thread.start()
    for trained in (step, other):
        trained(*inputs_of(NUM_STEPS))
    for thread in threads:
        thread.join()
    return {"different": changed + different(ours, theirs), "in_parts": in_parts}


@cases
def assigned_by_all() -> Any:
    """Assigns slots on all ranks, of which a pipeline of tf.data reads one after each step."""
    ours, theirs = Network("adam"), Network("adam")
    step, other = decorated(ours, shard=True), decorated(theirs, shard=False)
    slot, same = (network.optimizer.variables[2].value for network in (ours, theirs))
    data = tf.data.Dataset.range(1).map(lambda _: tf.identity(slot))
    changed: list[str] = []
    for number in range(NUM_STEPS):
        step(*inputs_of(number))
        other(*inputs_of(number))
        if next(iter(data)).numpy().tobytes() != same.numpy().tobytes():
            changed.append(f"step {number}")
        for network in (ours, theirs):
            for variable in network.optimizer.variables[3:6]:
                variable.assign(tf.ones_like(variable) * number)
    return changed + different(ours, theirs)


@cases
def refused() -> Any:
    """Reads a slot whose owner does not know it; the job goes on."""
    ours, theirs = Network("written"), Network("written")
    step, other = decorated(ours, shard=True), decorated(theirs, shard=False)
    for number in range(2):
        step(*inputs_of(number))
        other(*inputs_of(number))
    slot = ours.optimizer.variables[0].value
    error = ""
    if RANK == 1:
        reads = variable_access()._observers[vars(slot)["_handle"]._id]
        assert isinstance(reads, SlotReads)
        reads.drop(tuple(reads._slots))
        (FOLDER / f"dropped.{RANK}").touch()
        await_files("refused", [0])  # before the next step, which knows the slot again
    if RANK == 0:
        await_files("dropped", [1])
        try:
            slot.numpy()
        except EngineError as raised:
            error = str(raised)
        (FOLDER / f"refused.{RANK}").touch()
    step(*inputs_of(2))
    other(*inputs_of(2))
    return {"error": error, "different": different(ours, theirs)}


@cases
def read_in_step() -> Any:
    """Reads a slot by `tf.py_function` inside of a step, on rank 0."""
    ours = Network("written")

    def read() -> None:
        if RANK == 0 and number == 1:
            ours.optimizer.variables[0].numpy()

    step = interrupted(ours, True, read)
    for number in range(2):
        step(*inputs_of(number))
    return "not reached"
