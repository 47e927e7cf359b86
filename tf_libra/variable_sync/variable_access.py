"""Observation of accesses to variables outside of a training step: eager, in functions, in tf.data.

An observer of a variable is called before the access. The following reach a variable:

- eager code, by the variable's handle;
- a call of a function that has captured the handle, traced by this process or loaded;
- a function of tf.data that has captured it, at any time and in any thread. These accesses cannot
  be observed, so `captured_by_datasets` names the variables.
"""

import contextlib
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, Protocol

import tensorflow as tf

from tf_libra.internal import patches, patching, tf_internal
from tf_libra.internal.process_state import STATE

_OURS = __name__.partition(".")[0]
# Dtype that TensorFlow names in an error if a variable holds the part of this rank alone.
_PART = "variant"
# Reads that find freed values, before a reader gets one. Each lost race takes another step.
_MOST_READS = 10


class AccessObserver(Protocol):
    """Component that prepares variables for an access."""

    def on_access(self, handles: Sequence[Any]) -> None:
        """Prepares variables, given by their handles, for reads and writes by this thread."""
        ...


class VariableAccess:
    """Observers of the variables of this process."""

    def __init__(self) -> None:
        """Observes nothing yet, and replaces nothing in TensorFlow."""
        self._observers: dict[int, AccessObserver] = {}  # by key of the variable
        self._thread = threading.local()
        self._replaced = contextlib.ExitStack()
        self._is_installed = False
        self._datasets: list[weakref.ref[Any]] = []  # functions of tf.data with variables

    def observe(self, keys: Iterable[int], observer: AccessObserver) -> None:
        """Calls `observer` before each access of variables, by key, instead of others."""
        self._install()
        self._observers.update(dict.fromkeys(keys, observer))

    def forget(self, keys: Iterable[int]) -> None:
        """Ends the observation of variables."""
        for key in keys:
            self._observers.pop(key, None)

    @contextlib.contextmanager
    def unobserved(self) -> Iterator[None]:
        """Lets this thread access variables without their observers."""
        before = getattr(self._thread, "is_unobserved", False)
        self._thread.is_unobserved = True
        try:
            yield
        finally:
            self._thread.is_unobserved = before

    def captured_by_datasets(self) -> set[int]:
        """Returns the keys of variables that existing functions of tf.data may access."""
        if not self._datasets:
            return set()
        alive = [found for reference in self._datasets if (found := reference()) is not None]
        return {handle._id for wrapper in alive for handle in _captured_handles(wrapper)}

    def close(self) -> None:
        """Observes nothing, and restores TensorFlow."""
        self._observers.clear()
        self._replaced.close()
        self._is_installed = False

    def _install(self) -> None:
        if self._is_installed:
            return
        self._is_installed = True
        self._replaced.enter_context(patching.observed(patches.VARIABLE_HANDLE, self._on_handle))
        for patch, make in (
            (patches.VARIABLE_READ, self._reading),
            (patches.FUNCTION_CALL, self._calling),
            (patches.DATASET_FUNCTION, self._wrapping),
        ):
            self._replaced.enter_context(patching.replaced(patch, make))
        wrapper = patches.DATASET_FUNCTION.find_owner()
        for found in gc.get_referrers(wrapper):
            if isinstance(found, wrapper):
                self._note_dataset(found)

    def _note_dataset(self, wrapper: Any) -> None:
        if _captured_handles(wrapper):
            self._datasets = [reference for reference in self._datasets if reference() is not None]
            self._datasets.append(weakref.ref(wrapper))

    # What is called in TensorFlow's place.

    def _on_handle(self, handle: Any) -> Any:
        if not self._observers or not self._is_observed([handle]):
            return handle
        reader = _reader()
        if reader.f_globals.get("__name__", "").partition(".")[0] == _OURS:
            return handle  # it identifies the variable
        try:
            self._notify([handle])
        except Exception as error:
            # C++ that reads an attribute takes no exception, and then reads the variable.
            file = os.path.basename(reader.f_code.co_filename)
            if file == "tape.py":
                return handle
            if file.startswith("gen_"):
                return _failing_handle(error)
            raise
        return handle

    def _reading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(variable: Any, *args: Any, **kwargs: Any) -> Any:
            for _ in range(_MOST_READS - 1):
                is_unobserved = getattr(self._thread, "is_unobserved", False)
                try:
                    value = original(variable, *args, **kwargs)
                except tf.errors.InvalidArgumentError as error:
                    if is_unobserved or _PART not in str(error):
                        raise
                else:
                    if is_unobserved or not _was_freed(variable, value):
                        return value
            return original(variable, *args, **kwargs)

        return read

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_flat(function: Any, *args: Any) -> Any:
            if self._observers and self._is_observed(args):
                self._notify(args)
            return original(function, *args)

        return call_flat

    def _wrapping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            self._note_dataset(wrapper)

        return init

    def _is_observed(self, tensors: Sequence[Any]) -> bool:
        """Returns whether one is a variable's handle, and used now and not in a later call."""
        if getattr(self._thread, "is_unobserved", False):
            return False
        known = any(getattr(tensor, "_id", None) in self._observers for tensor in tensors)
        return known and tf.executing_eagerly()

    def _notify(self, tensors: Sequence[Any]) -> None:
        handles: dict[int, tuple[AccessObserver, list[Any]]] = {}
        for tensor in tensors:
            observer = self._observers.get(getattr(tensor, "_id", -1))
            if observer is not None:
                handles.setdefault(id(observer), (observer, []))[1].append(tensor)
        for observer, accessed in handles.values():
            with self.unobserved(), tf_internal.stop_recording():
                observer.on_access(accessed)


def _captured_handles(wrapper: Any) -> list[Any]:
    """Returns the handles of variables that a function of tf.data has captured."""
    function = getattr(wrapper, "_function", None)
    captured = getattr(function, "captured_inputs", ())
    return [
        tensor
        for tensor in captured
        if isinstance(tensor, tf_internal.EagerTensor) and tensor.dtype == tf.resource
    ]


def _was_freed(variable: Any, value: Any) -> bool:
    """Returns whether a variable was freed between its observer's call and the read."""
    is_eager = isinstance(value, tf_internal.EagerTensor)
    return is_eager and not variable.shape.is_compatible_with(value.shape)


def _reader() -> FrameType:
    """Returns the frame that reads a variable's handle, by the attribute or the property."""
    frame: FrameType | None = sys._getframe(1)
    files = (__file__, patching.__file__)
    while frame is not None and frame.f_back is not None:
        is_property = frame.f_code.co_name == "handle" and "resource_variable_ops" in (
            frame.f_code.co_filename
        )
        if frame.f_code.co_filename not in files and not is_property:
            break
        frame = frame.f_back
    assert frame is not None
    return frame


def _failing_handle(error: Exception) -> Any:
    """Returns the handle of a variable without a value, whose name is the message of an error."""
    return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=str(error))


@STATE.value(on_reset=lambda access: access._observers.clear())
def variable_access() -> VariableAccess:
    """Returns the observers of this process."""
    return VariableAccess()
