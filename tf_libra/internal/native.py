"""Loader of the shared library, and declarations of its C functions."""

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

PATH = Path(__file__).resolve().parent.parent / "_tf_libra.so"

_TEXT = ctypes.c_char_p
_INT = ctypes.c_int
_INTS = ctypes.POINTER(ctypes.c_int)
_LONGS = ctypes.POINTER(ctypes.c_longlong)
_TEXTS = ctypes.POINTER(ctypes.c_char_p)
_TEXT_OUT = ctypes.POINTER(ctypes.c_char_p)
_BYTES_OUT = ctypes.POINTER(ctypes.c_void_p)
_SIZE_OUT = ctypes.POINTER(ctypes.c_int64)

# Name: (result, arguments). ops/c_api.h and passes/c_api.h document them.
_PROTOTYPES = {
    "TfLibraLastError": (_TEXT, []),
    "TfLibraInterfaceAddress": (_INT, [_TEXT, _TEXT_OUT]),
    "TfLibraListen": (_INT, [_TEXT, _INT, _INT, _INT, _TEXT_OUT, _INTS]),
    "TfLibraConnect": (
        _INT,
        [
            *(_INT, _INT, _TEXTS, _INTS, _TEXTS, _TEXTS),
            *(_TEXT, _INT, *(3 * [ctypes.c_double])),
        ],
    ),
    "TfLibraGrow": (_INT, [_TEXTS, _INTS, _TEXTS, _TEXTS, _TEXT, _INT]),
    "TfLibraEngineInfo": (_INT, [_INTS, _INTS, _INTS, _INTS]),
    "TfLibraAllGather": (_INT, [_TEXT, ctypes.c_int64, _BYTES_OUT, _SIZE_OUT]),
    "TfLibraBroadcast": (_INT, [_TEXT, ctypes.c_int64, _BYTES_OUT, _SIZE_OUT]),
    "TfLibraAwaitRead": (_INT, [ctypes.c_double, _INTS, _TEXT_OUT]),
    "TfLibraSetStep": (_INT, [ctypes.c_int64]),
    "TfLibraOmitZeros": (_INT, [_INT]),
    "TfLibraOwnedBegin": (ctypes.c_int64, [ctypes.c_int64, _INT, _INT]),
    "TfLibraDrainTelemetry": (_INT, [_TEXT_OUT]),
    "TfLibraNumExecuted": (ctypes.c_int64, [_TEXT]),
    "TfLibraTakeExecuted": (_INT, [_TEXT, _TEXT_OUT]),
    "TfLibraAwaitGathers": (_INT, [ctypes.c_double]),
    "TfLibraEndCall": (_INT, []),
    "TfLibraKeepChanges": (_INT, []),
    "TfLibraAwaitSteps": (_INT, [ctypes.c_double]),
    "TfLibraFailSteps": (_INT, []),
    "TfLibraUndoSteps": (_INT, []),
    "TfLibraNumCompleteSteps": (ctypes.c_int64, []),
    "TfLibraNumBegunSteps": (ctypes.c_int64, []),
    "TfLibraFreeSpares": (_INT, []),
    "TfLibraRoundingSeconds": (_INT, [_TEXT, _INT, ctypes.POINTER(ctypes.c_double)]),
    "TfLibraCopyErrorFeedback": (_INT, [_TEXT, _BYTES_OUT, _SIZE_OUT]),
    "TfLibraSetErrorFeedback": (
        _INT,
        [_TEXT, _TEXT, ctypes.POINTER(ctypes.c_float), ctypes.c_int64],
    ),
    "TfLibraClearErrorFeedback": (_INT, [_TEXT]),
    "TfLibraAbort": (_INT, [_TEXT]),
    "TfLibraClose": (_INT, [_TEXT]),
    "TfLibraStartHorovod": (_INT, [_INT, _INT]),
    "TfLibraFailHorovod": (_INT, [_TEXT]),
    "TfLibraStopHorovod": (_INT, []),
    "TfLibraRegisterPlan": (
        _INT,
        [
            *(_TEXT, _TEXT, _INT, _INTS, _INTS, _INTS, _TEXTS, _LONGS, _INT, _TEXT),
            *(_INT, _INTS, _INTS, _TEXTS),
        ],
    ),
    "TfLibraUnregisterPlan": (_INT, [_TEXT]),
    "TfLibraRegisterSharding": (_INT, [_TEXT, _INT, _TEXTS, _LONGS, _INT, _INTS, _INT]),
    "TfLibraLastPlanError": (_TEXT, []),
    "TfLibraRewriteReport": (_TEXT, [_TEXT]),
}


@dataclass(frozen=True)
class Library:
    """The loaded library: its ops and its C functions.

    Attributes:
        path: the shared object.
        ops: TensorFlow's module of generated op functions (`libra_all_reduce`).
        c: the same object's C functions.
    """

    path: Path
    ops: ModuleType
    c: ctypes.CDLL


@functools.cache
def load() -> Library:
    """Loads the library into this process.

    Raises:
        ImportError: it was not built, or was built for another TensorFlow than the installed one.
    """
    import tensorflow as tf

    if not PATH.exists():
        raise ImportError(
            f"tf_libra was installed without its library ({PATH.name}), for lack of TensorFlow at"
            " that time; install it again: pip install --no-build-isolation --force-reinstall"
            " --no-deps tf-libra"
        )
    try:
        ops = tf.load_op_library(str(PATH))
    except tf.errors.NotFoundError as error:
        raise ImportError(
            f"tf_libra's library was not built for TensorFlow {tf.__version__}; install tf-libra"
            f" again in this environment ({error.message})"
        ) from error
    c = ctypes.CDLL(str(PATH))
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(c, name)
        function.restype = result
        function.argtypes = arguments
    tf.RegisterGradient("LibraAllReduce")(_gradient)
    return Library(path=PATH, ops=ops, c=c)


def is_loaded() -> bool:
    """Returns whether this process has loaded the library; if not, none of its code runs."""
    return load.cache_info().currsize > 0


class EnginePlace(NamedTuple):
    """Place of this process among those of the running engine."""

    rank: int
    world_size: int
    ranks_per_host: int
    num_lanes: int


def engine_place() -> EnginePlace | None:
    """Returns the place of this process in the engine; None if none runs."""
    numbers = [ctypes.c_int() for _ in EnginePlace._fields]
    if load().c.TfLibraEngineInfo(*map(ctypes.byref, numbers)) != 0:
        return None
    return EnginePlace(*(number.value for number in numbers))


def _gradient(operation: Any, *incoming: Any) -> list[Any]:
    """Returns the gradient of an average (or sum) over ranks: the same reduction of `incoming`.

    Rank s's loss depends on the sum of all ranks' tensors, so each rank's gradient is reduced from
    those of all. Of rows that all ranks have gathered, it is this rank's part.

    Raises:
        ValueError: rows were gathered by another engine than lanes.
    """
    import tensorflow as tf

    names, reduction, function, plan = (
        operation.get_attr(name) for name in ("tensor_names", "reduction", "function", "plan")
    )
    rows, ends = operation.inputs[: len(names)], operation.inputs[len(names) :]
    place = _place_of_rows() if ends else None
    is_shared = ends[1] > 0 if len(ends) > 1 else None
    if place is not None and is_shared is not None:  # else rows were not divided
        factor = tf.where(is_shared, 1, place.world_size)
        incoming = tuple(tensor * tf.cast(factor, tensor.dtype) for tensor in incoming)
    reduced = load().ops.libra_all_reduce(
        tensors=list(incoming),
        ends=[],
        tensor_names=[f"{name.decode()}/grad" for name in names],
        reduction=reduction,
        function=function,
        plan=plan,
    )
    if place is None:
        return list(reduced)
    num_rows = tf.shape(rows[0])[0]
    begin = ends[0][place.rank] - num_rows
    if is_shared is not None:
        begin = tf.where(is_shared, 0, begin)
    return [reduced[0][begin : begin + num_rows], *(None for _ in ends)]


def _place_of_rows() -> EnginePlace:
    """Returns the place whose rows a gradient is of.

    Raises:
        ValueError: rows were gathered by another engine than lanes.
    """
    place = engine_place()
    if place is None:
        raise ValueError(
            "inner_gradients='average' needs engine='lanes' for sparse gradients, or"
            " sparse_as_dense=True"
        )
    return place


def message(text: str) -> bytes:
    """Returns a message as a C string of UTF-8.

    Paths in other encodings contain surrogates in Python, which UTF-8 lacks; they are replaced.
    """
    return text.encode(errors="backslashreplace").replace(b"\0", b"\\0")


def text_array(texts: list[str] | tuple[str, ...]) -> ctypes.Array[ctypes.c_char_p]:
    """Returns texts as a C array of UTF-8 strings."""
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def int_array(values: list[int] | tuple[int, ...]) -> ctypes.Array[ctypes.c_int]:
    """Returns integers as a C array."""
    return (ctypes.c_int * len(values))(*values)


def long_array(values: list[int] | tuple[int, ...]) -> ctypes.Array[ctypes.c_longlong]:
    """Returns 64-bit integers as a C array."""
    return (ctypes.c_longlong * len(values))(*values)
