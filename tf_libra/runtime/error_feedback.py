"""Rounding errors that the engine adds to the next gradients, and their state in checkpoints."""

import ctypes
import io
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.internal import log_utils, native

_ABOUT = "about"


class ErrorFeedbackState(tf.train.experimental.PythonState):
    """Rounding errors that this rank adds to its next gradients, for `tf.train.Checkpoint`.

    Errors belong to one rank: a checkpoint restores those that the same rank of as many ranks has
    saved. Other ranks, and a checkpoint without the state, begin at zero.
    """

    def __init__(self, function: str) -> None:
        """Creates the state of a training function, at zero.

        Args:
            function: identity of the training function.
        """
        super().__init__()
        self._function = function
        self._rank_and_size: tuple[int, int] | None = None
        self._restored: bytes | None = None

    def join(self, rank: int, size: int) -> None:
        """Begins a job: with errors that were restored before, else at zero."""
        self._rank_and_size = rank, size
        self._apply()

    def serialize(self) -> bytes:
        """Returns the errors of all tensors, with rank and number of ranks."""
        if self._rank_and_size is None:
            return self._restored or b""
        errors = copy_errors(self._function)
        about = {"place": self._rank_and_size, "names": list(errors)}
        packed = io.BytesIO()
        arrays: dict[str, Any] = {_ABOUT: np.array(json.dumps(about))}
        arrays |= {str(index): values for index, values in enumerate(errors.values())}
        np.savez(packed, **arrays)
        return packed.getvalue()

    def deserialize(self, serialized: Any) -> None:
        """Replaces the errors by those of a checkpoint; before the first step, from then on.

        Raises:
            ValueError: the bytes are no state of error feedback.
        """
        restored = bytes(serialized)
        if restored:
            _unpack(restored)
        self._restored = restored
        if self._rank_and_size is not None:
            self._apply()

    def _apply(self) -> None:
        restored, self._restored = self._restored, None
        errors: dict[str, Any] = {}
        if restored:
            rank_and_size, saved = _unpack(restored)
            if rank_and_size == self._rank_and_size:
                errors = saved
            else:
                assert self._rank_and_size is not None
                log_utils.logger(self._rank_and_size[0]).warning(
                    "error_feedback: the checkpoint holds the rounding errors of rank %d of %d;"
                    " this is rank %d of %d, and begins at zero",
                    *rank_and_size,
                    *self._rank_and_size,
                )
        set_errors(self._function, errors)


class DeferredErrorFeedback(tf.train.experimental.PythonState):
    """State of error feedback of a training function that does not exist yet, or is replaced."""

    def __init__(self) -> None:
        """Creates a state without a function."""
        super().__init__()
        self._state: ErrorFeedbackState | None = None
        self._restored = b""

    def connect(self, state: ErrorFeedbackState) -> None:
        """Continues as the state of a function, with errors that were restored before."""
        self._state = state
        if self._restored:
            state.deserialize(self._restored)
        self._restored = b""

    def serialize(self) -> bytes:
        """Returns what `ErrorFeedbackState.serialize` does."""
        return self._restored if self._state is None else self._state.serialize()

    def deserialize(self, serialized: Any) -> None:
        """Replaces the errors by those of a checkpoint.

        Raises:
            ValueError: the bytes are no state of error feedback.
        """
        if self._state is not None:
            self._state.deserialize(serialized)
            return
        self._restored = bytes(serialized)
        if self._restored:
            _unpack(self._restored)


def _unpack(serialized: bytes) -> tuple[tuple[int, int], dict[str, Any]]:
    """Returns rank and number of ranks, and the errors by tensor."""
    try:
        with np.load(io.BytesIO(serialized), allow_pickle=False) as arrays:
            about = json.loads(str(arrays[_ABOUT]))
            rank, size = about["place"]
            errors = {name: arrays[str(index)] for index, name in enumerate(about["names"])}
    except Exception as error:
        raise ValueError(f"error_feedback: the state cannot be read: {error}") from error
    return (int(rank), int(size)), errors


def copy_errors(function: str) -> dict[str, Any]:
    """Returns the errors of this rank by tensor, as vectors of float32; not during a step.

    Raises:
        RuntimeError: there is no memory for the copy.
    """
    data, size = ctypes.c_void_p(), ctypes.c_int64()
    code = native.load().c.TfLibraCopyErrorFeedback(
        function.encode(), ctypes.byref(data), ctypes.byref(size)
    )
    _check(code)
    packed = ctypes.string_at(data.value or 0, size.value)
    parts: list[bytes] = []
    at = 0
    while at < len(packed):
        (length,) = struct.unpack_from("<Q", packed, at)
        parts.append(packed[at + 8 : at + 8 + length])
        at += 8 + length
    return {
        name.decode(): np.frombuffer(errors, np.float32)
        for name, errors in zip(parts[::2], parts[1::2], strict=True)
    }


def set_errors(function: str, errors: Mapping[str, Any]) -> None:
    """Replaces the errors of all tensors, which are zero unless given; not during a step."""
    c = native.load().c
    _check(c.TfLibraClearErrorFeedback(function.encode()))
    for name, values in errors.items():
        vector = np.ascontiguousarray(values, np.float32)
        pointer = vector.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        _check(c.TfLibraSetErrorFeedback(function.encode(), name.encode(), pointer, vector.size))


def _check(code: int) -> None:
    if code != 0:
        raise RuntimeError(native.load().c.TfLibraLastError().decode(errors="replace"))
