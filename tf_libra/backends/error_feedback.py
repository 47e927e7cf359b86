"""Rounding errors that the engine adds to the next gradients of a training function."""

import ctypes
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_libra.internal import native


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
