"""Sizes of TensorFlow's dtypes by name, without TensorFlow."""

from collections.abc import Mapping

_ITEM_BYTES: Mapping[str, int] = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "qint8": 1,
    "quint8": 1,
    "float8_e5m2": 1,
    "float8_e4m3fn": 1,
    "int16": 2,
    "uint16": 2,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "float": 4,
    "float32": 4,
    "int32": 4,
    "uint32": 4,
    "double": 8,
    "float64": 8,
    "int64": 8,
    "uint64": 8,
    "complex64": 8,
    "complex128": 16,
}


def item_bytes(dtype: str | None) -> int | None:
    """Return the bytes of one element; None for an unknown dtype."""
    return None if dtype is None else _ITEM_BYTES.get(dtype)
