"""Slots of which each rank holds the part that it owns, and requests for the parts of others."""

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.backends import collective_ops
from tf_libra.backends import engine as engine_lib
from tf_libra.coordination import control_plane
from tf_libra.internal import native
from tf_libra.variable_sync.read_service import ERRORS

_HOST = "/cpu:0"


@dataclass(frozen=True, eq=False)
class Slot:
    """A slot variable, which exists as long as the script refers to it.

    Attributes:
        number: the same on all ranks.
        key: its key in this process.
        name: its name.
        handle: weak reference to its handle.
        dtype: dtype of its value.
        shape: static shape of its value.
    """

    number: int
    key: int
    name: str
    handle: "weakref.ref[Any]"
    dtype: tf.DType
    shape: tf.TensorShape


def is_part(slot: Slot) -> bool:
    """Returns whether a slot exists and holds the owned part alone, a scalar for TensorFlow."""
    handle = slot.handle()
    with tf.device(_HOST):
        if handle is None or slot.shape.rank:
            return handle is not None and tf.raw_ops.VariableShape(input=handle).shape[0] == 0
        try:
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=slot.dtype)
        except tf.errors.InvalidArgumentError:
            return True
        return False


def read_part(slot: Slot, before_steps: bool = False) -> Any:
    """Returns the part that this rank owns of an existing slot.

    Args:
        slot: a slot that holds the part alone.
        before_steps: whether to return the part as it was before all steps that are not complete;
            then the slot may be whole.
    """
    with tf.device(_HOST):
        return native.load().ops.libra_read_owned(
            resource=slot.handle(), dtype=slot.dtype, before_steps=before_steps
        )


def assign_whole(slot: Slot, parts: Mapping[int, Any]) -> None:
    """Assigns the parts of all ranks, by rank, to an existing slot that holds a part."""
    handle = slot.handle()
    with tf.device(_HOST):
        whole = tf.reshape(tf.concat([parts[rank] for rank in sorted(parts)], 0), slot.shape)
        native.load().ops.libra_release_owned(resource=handle)  # else of another dtype
        tf.raw_ops.AssignVariableOp(resource=handle, value=whole)


def fetch_parts(
    slots: Iterable[Slot], engine: engine_lib.Engine, function: str, when: int
) -> tuple[dict[int, dict[int, Any]], dict[int, Exception]]:
    """Fetches the parts of other ranks, but for empty ones.

    Args:
        slots: the slots.
        engine: reaches the other ranks.
        function: as in `ServedValues`.
        when: step of the values, as in `ServedValues.value`.

    Returns:
        Parts by the slot's key and rank, and errors by the key of slots that lack parts.
    """
    parts: dict[int, dict[int, Any]] = {}
    errors: dict[int, Exception] = {}
    started: list[tuple[Slot, int, Any]] = []
    for slot in slots:
        parts[slot.key] = {}
        try:
            started += _start(slot, engine, f"{function}: {slot.number} {when}")
        except ERRORS as error:
            errors[slot.key] = error
    for slot, rank, pending in started:  # all, as a later read would get what is left
        try:
            answer = collective_ops.received(pending)
            with tf.device(_HOST):
                if answer[-1] == 0:
                    raise control_plane.EngineError(
                        f"slot {slot.name!r} of {function} has a part on rank {rank}, which cannot"
                        " give it to this rank: its log has the reason"
                    )
                parts[slot.key][rank] = answer[:-1]
        except ERRORS as error:
            errors.setdefault(slot.key, error)
    return {key: found for key, found in parts.items() if key not in errors}, errors


def _start(slot: Slot, engine: engine_lib.Engine, name: str) -> list[tuple[Slot, int, Any]]:
    size = slot.shape.num_elements()
    begin_of = native.load().c.TfLibraOwnedBegin
    borders = [begin_of(size, engine.world_size, i) for i in range(engine.world_size + 1)]
    started = []
    for rank in range(engine.world_size):
        count = borders[rank + 1] - borders[rank]
        if rank == engine.rank or count == 0:
            continue
        pending = collective_ops.receive_start(
            slot.dtype,
            [count + 1],
            rank,
            f"{name} {count} {slot.dtype.as_datatype_enum}",
            one_sided=True,
        )
        started.append((slot, rank, pending))
    return started
