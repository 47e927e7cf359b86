"""Profiler sessions in memory: start and stop TensorFlow's profiler, and read its op events."""

import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np
import tensorflow as tf

from tf_libra.internal import patches, patching, tf_internal
from tf_libra.profiling.events import Events

# The defaults record ops and no Python calls. TensorFlow 2.21 takes no option from here: it warns
# of each and uses its defaults.
_OPTIONS: dict[str, int] = {}
_HOST_PLANE = "/host:CPU"
# Trace timestamps count from the start of the session. Events of this name carry the wall clock,
# which aligns a trace with other timestamps.
_CLOCK_EVENT = "tf_libra_clock"
_CLOCK_ARGUMENT = "realtime_ns"
_NUM_CLOCK_EVENTS = 5


BUSY = "another profiler session is active"


def find_profiler_conflict() -> str:
    """Returns why the script itself uses the profiler or collects graphs; empty if it does not.

    A session may be the script's, Keras' TensorBoard(profile_batch=...), or the profiler server's.
    Graphs are collected from `tf.summary.trace_on` to its export.
    """
    enabled = tf_internal.profiler_trace.enabled  # a function; in older releases, a flag
    if enabled() if callable(enabled) else enabled:
        return BUSY
    if tf_internal.is_collecting_graphs():
        return "tf.summary.trace_on is collecting graphs"
    return ""


class TraceSession:
    """Profiler session of the `with` block, which yields to other sessions.

    TensorFlow allows one profiler session per process. If another one is active, `trace` stays None
    and `unavailable` says why; nothing is raised. If Python code starts another session inside the
    block, in any thread, this one ends first, so that the other starts. Nothing is written to disk.

    Keep the block to a few steps: a profiler server cannot profile meanwhile.

    Attributes:
      trace: serialized trace for `read_events`, after the block; None without one.
      unavailable: reason for a missing trace; empty if there is one.
      is_interrupted: True if another session is the reason.
    """

    def __init__(self) -> None:
        self.trace: bytes | None = None
        self.unavailable = ""
        self.is_interrupted = False
        self._session: tf_internal.pywrap_profiler.ProfilerSession | None = None
        self._lock = threading.Lock()
        self._replaced = contextlib.ExitStack()

    def __enter__(self) -> Self:
        session = tf_internal.pywrap_profiler.ProfilerSession()
        try:
            session.start("", _OPTIONS)
        except tf.errors.AlreadyExistsError:
            self.unavailable = f"busy: {BUSY}"
            self.is_interrupted = True
        except tf.errors.OpError as error:
            self.unavailable = f"the profiler did not start: {error.message}"
        else:
            self._session = session
            self._replaced.enter_context(
                patching.replaced(patches.PROFILER_SESSION, self._giving_way)
            )
            for _ in range(_NUM_CLOCK_EVENTS):
                with tf_internal.profiler_trace.Trace(
                    _CLOCK_EVENT, **{_CLOCK_ARGUMENT: time.time_ns()}
                ):
                    pass
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._replaced.close()
        self.trace = self._stop()

    def _stop(self) -> bytes | None:
        with self._lock:
            session, self._session = self._session, None
            try:
                return None if session is None else session.stop()
            except tf.errors.OpError as error:
                self.unavailable = f"the profiler did not stop: {error.message}"
                return None

    def _giving_way(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            if self._stop() is not None:
                self.unavailable = f"busy: {BUSY}, started while a step was traced"
                self.is_interrupted = True
            return original(*args, **kwargs)

        return make


def read_events(trace: bytes) -> Events:
    """Reads the op events of a trace recorded by `TraceSession`.

    Args:
      trace: serialized `tsl.profiler.Trace` with the session's clock events.

    Returns:
      The events in the trace's order (by thread, then by time).

    Raises:
      ValueError: `trace` cannot be parsed, or lacks the clock events of `TraceSession`.
    """
    message = tf_internal.trace_events_pb2.Trace()
    try:
        message.ParseFromString(trace)
    except Exception as error:  # DecodeError moves between protobuf versions
        raise ValueError(f"trace: not a serialized profiler trace ({error})") from error
    host_ids = {i for i, device in message.devices.items() if device.name == _HOST_PLANE}
    labels: dict[str, int] = {}
    node: list[int] = []
    start_ps: list[int] = []
    duration_ps: list[int] = []
    clock_offsets_ns: list[int] = []
    for event in message.trace_events:
        arguments = event.args
        if "long_name" in arguments:  # only ops, and tf.data's iterators, have one
            if event.device_id in host_ids:
                node.append(labels.setdefault(arguments["long_name"], len(labels)))
                start_ps.append(event.timestamp_ps)
                duration_ps.append(event.duration_ps)
        elif event.name == _CLOCK_EVENT:
            clock_offsets_ns.append(int(arguments[_CLOCK_ARGUMENT]) - event.timestamp_ps // 1000)
    if not clock_offsets_ns:
        raise ValueError(f"trace: no {_CLOCK_EVENT} event; record it with TraceSession")
    # An event starts a little after its clock was read: the largest offset is the closest.
    offset_ns = max(clock_offsets_ns)

    split = [label.rpartition(":") for label in labels]
    is_op = np.array([bool(name) and "::" not in name for name, _, _ in split], dtype=bool)
    index = np.array(node, dtype=np.int32)
    start = np.array(start_ps, dtype=np.int64)
    end = start + np.array(duration_ps, dtype=np.int64)
    keep = is_op[index]
    return Events(
        node_names=tuple(name for name, _, _ in split),
        op_types=tuple(op_type for _, _, op_type in split),
        node=index[keep],
        start_ns=offset_ns + start[keep] // 1000,
        end_ns=offset_ns + end[keep] // 1000,
    )
