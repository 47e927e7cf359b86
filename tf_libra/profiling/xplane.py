"""Traces that TensorFlow's profiler wrote to disk: finding and reading them.

`tf.profiler.experimental`, `tf.keras.callbacks.TensorBoard(profile_batch=...)` and the profiler
server write `LOGDIR/plugins/profile/SESSION/HOST.xplane.pb`, a serialized `XSpace`. The host's
plane has a line per thread. Two kinds of its events are read: ops, and the events of TF-Libra's op
and lanes (`ops/profiler_events.h`).
"""

import functools
import importlib.util
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tf_libra.profiling.events import Events

_HOST_PLANE = "/host:CPU"
_SUFFIX = ".xplane.pb"
_OP = ":LibraAllReduce"
_WHOLE = ("LibraAllReduce group ", "LibraAllReduce unplanned")
_PHASES = {"LibraAllReduce wait": "wait", "LibraAllReduce exchange": "exchange"}


@dataclass(frozen=True)
class AllReduceCall:
    """Event of the op `LibraAllReduce` that submits its tensors to the engine.

    Attributes:
        node: name of the op in the executed graph.
        plan: id of the plan; empty without a plan.
        group: index of the tensor group; -1 without a plan.
        num_threads: communication threads r.
        tensor_names: names of the tensors, in backward order.
        num_bytes: size of each tensor.
        producers: node in the executed graph that produces each tensor.
        enqueued_ns: time at which all tensors are available, nanoseconds of the trace's clock.
        part_starts: first byte of each tensor's part; -1 for whole tensors.
    """

    node: str
    plan: str
    group: int
    num_threads: int
    tensor_names: tuple[str, ...]
    num_bytes: tuple[int, ...]
    producers: tuple[str, ...]
    enqueued_ns: int
    part_starts: tuple[int, ...] = ()

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Name and first byte of each tensor, which are unique in a step."""
        starts = self.part_starts or (-1,) * len(self.tensor_names)
        return tuple(zip(self.tensor_names, starts, strict=True))


@dataclass(frozen=True)
class LaneEvent:
    """Event of a lane: its part of an all-reduce, or a phase of that.

    Attributes:
        phase: "" for all of it, "wait" (for the other ranks' first bytes) or "exchange".
        lane: number of the lane.
        group: index of the tensor group; -1 without a plan.
        sequence: number of the all-reduce in the process.
        num_threads: communication threads of the all-reduce; 0 for a phase.
        num_bytes: size of the whole all-reduce; 0 for a phase.
        step: number of the step; -1 for a phase.
        start_ns: start by the trace's clock.
        end_ns: end by the trace's clock.
    """

    phase: str
    lane: int
    group: int
    sequence: int
    num_threads: int
    num_bytes: int
    step: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, eq=False)
class Trace:
    """Trace of one host; all times are nanoseconds of the trace's clock.

    Attributes:
        events: op events.
        calls: all-reduces submitted to the engine, in chronological order.
        lanes: events of the lanes, in chronological order.
    """

    events: Events
    calls: tuple[AllReduceCall, ...]
    lanes: tuple[LaneEvent, ...]


def find_trace(path: Path) -> Path:
    """Returns the trace file of a path.

    Args:
        path: trace file; or a folder above or below traces, such as a log directory, whose newest
            session is taken.

    Raises:
        OSError: `path` does not exist.
        ValueError: no trace, or several in the newest session.
    """
    if not path.is_dir():
        path.stat()
        return path
    found = sorted(found for found in path.rglob(f"*{_SUFFIX}"))
    if not found:
        raise ValueError(
            f"{str(path)!r} holds no trace of TensorFlow's profiler (*{_SUFFIX}), nor do its"
            " subfolders"
        )
    newest = max(found, key=lambda file: (file.parent.name, file.stat().st_mtime_ns)).parent
    chosen = [file for file in found if file.parent == newest]
    if len(chosen) > 1:
        names = ", ".join(repr(file.name) for file in chosen)
        raise ValueError(f"{str(newest)!r} holds {len(chosen)} traces, name one: {names}")
    return chosen[0]


def read_trace(path: Path) -> Trace:
    """Reads a trace file. Needs an installed TensorFlow for the format.

    Raises:
        ImportError: TensorFlow is not installed.
        OSError: the file cannot be read.
        ValueError: not a trace, or a trace without events of the host.
    """
    content = path.read_bytes()
    space = _messages().XSpace()
    try:
        space.ParseFromString(content)
    except Exception as error:  # DecodeError moves between protobuf versions
        raise ValueError(
            f"{str(path)!r} is not a trace of TensorFlow's profiler ({error})"
        ) from None
    planes = [plane for plane in space.planes if plane.name == _HOST_PLANE]
    if not planes:
        raise ValueError(f"{str(path)!r} is a trace without a plane {_HOST_PLANE}")
    return _read_plane(planes[0])


@functools.cache
def _messages() -> Any:
    """Returns the module of the format, loaded alone since importing TensorFlow takes seconds."""
    installed = importlib.util.find_spec("tensorflow")
    if installed is None or not installed.submodule_search_locations:
        raise ImportError("reading a trace needs TensorFlow, which is not installed")
    folder = Path(installed.submodule_search_locations[0], "tsl", "profiler", "protobuf")
    spec = importlib.util.spec_from_file_location("_xplane_pb2", folder / "xplane_pb2.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _read_plane(plane: Any) -> Trace:
    names = {key: metadata.name for key, metadata in plane.event_metadata.items()}
    stats = {key: metadata.name for key, metadata in plane.stat_metadata.items()}
    ops = {key for key, metadata in plane.event_metadata.items() if metadata.display_name}
    labels: dict[str, int] = {}
    rows: list[tuple[int, int, int]] = []
    calls: list[AllReduceCall] = []
    lanes: list[LaneEvent] = []
    for line in plane.lines:
        for event in line.events:
            name = names.get(event.metadata_id, "")
            start_ns = line.timestamp_ns + event.offset_ps // 1000
            end_ns = line.timestamp_ns + (event.offset_ps + event.duration_ps) // 1000
            if event.metadata_id in ops and _is_op(name):
                rows.append((labels.setdefault(name, len(labels)), start_ns, end_ns))
                if name.endswith(_OP):
                    arguments = dict(_arguments(event, stats))
                    if "names" in arguments:
                        calls.append(_call(name.removesuffix(_OP), arguments, start_ns))
            elif name.startswith(_WHOLE) or name in _PHASES:
                arguments = dict(_arguments(event, stats))
                lanes.append(_lane_event(name, line.name, arguments, start_ns, end_ns))
    split = [label.rpartition(":") for label in labels]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    events = Events(
        node_names=tuple(node for node, _, _ in split),
        op_types=tuple(kind for _, _, kind in split),
        node=columns[:, 0].astype(np.int32),
        start_ns=columns[:, 1],
        end_ns=columns[:, 2],
    )
    calls.sort(key=lambda call: call.enqueued_ns)
    # Of events with the same start, the whole all-reduce precedes its phases.
    lanes.sort(key=lambda event: (event.start_ns, -event.end_ns, event.lane))
    return Trace(events, tuple(calls), tuple(lanes))


def _is_op(name: str) -> bool:
    """Returns whether a name is an op's, `node:Type`; tf.data's iterators have `::` in theirs."""
    node, colon, kind = name.rpartition(":")
    return bool(node and colon and kind) and "::" not in name


def _arguments(event: Any, stats: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        if kind == "ref_value":
            yield stats.get(stat.metadata_id, ""), stats.get(stat.ref_value, "")
        elif kind:
            yield stats.get(stat.metadata_id, ""), getattr(stat, kind)


def _call(node: str, arguments: Mapping[str, Any], enqueued_ns: int) -> AllReduceCall:
    names = _list(arguments["names"])
    sizes = tuple(int(text) for text in _list(arguments.get("bytes", "")))
    producers = tuple(_node(text) for text in _list(arguments.get("producers", "")))
    starts = (
        tuple(int(text) for text in _list(arguments["starts"])) if "starts" in arguments else ()
    )
    if not len(names) == len(sizes) == len(producers):
        raise ValueError(
            f"{node}: names, bytes and producers differ in length: {len(names)}, {len(sizes)},"
            f" {len(producers)}"
        )
    return AllReduceCall(
        node=node,
        plan=urllib.parse.unquote(str(arguments.get("plan", ""))).strip("'"),
        group=int(arguments.get("group", -1)),
        num_threads=int(arguments.get("threads", 1)),
        tensor_names=names,
        num_bytes=sizes,
        producers=producers,
        enqueued_ns=enqueued_ns,
        part_starts=starts if len(starts) == len(names) else (),
    )


def _lane_event(
    name: str, thread: str, arguments: Mapping[str, Any], start_ns: int, end_ns: int
) -> LaneEvent:
    number = thread.rpartition(" ")[2]
    return LaneEvent(
        phase=_PHASES.get(name, ""),
        lane=int(number) if number.isdecimal() else 0,
        group=int(arguments.get("group", -1)),
        sequence=int(arguments.get("sequence", -1)),
        num_threads=int(arguments.get("threads", 0)),
        num_bytes=int(arguments.get("bytes", 0)),
        step=int(arguments.get("step", -1)),
        start_ns=start_ns,
        end_ns=end_ns,
    )


def _list(text: Any) -> tuple[str, ...]:
    """Returns the items of a list separated by semicolons; a single number arrives as an int."""
    return tuple(urllib.parse.unquote(item) for item in str(text).split(";"))


def _node(tensor: str) -> str:
    """Returns the node of `node:output`."""
    return tensor.partition(":")[0]
