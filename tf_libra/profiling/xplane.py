"""Traces that TensorFlow's profiler has written to disk: finding and reading them.

`tf.profiler.experimental`, `tf.keras.callbacks.TensorBoard(profile_batch=...)` and the profiler's
server all write `LOGDIR/plugins/profile/SESSION/HOST.xplane.pb`, a serialized `XSpace`. The plane
of the host has a line per thread; of its events two kinds are of interest here: ops, and what
TF-Libra's op and lanes record of themselves (`ops/profiler_events.h`).
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
    """The op `LibraAllReduce` handing its tensors to the engine, as its own event tells it.

    Attributes:
        node: the op's name in the executed graph.
        plan: id of the plan; empty where no plan was applied.
        group: index of the tensor group; -1 where no plan was applied.
        num_threads: communication threads r.
        tensor_names: in backward order.
        num_bytes: size of each of them.
        producers: the node in the executed graph that produces each of them.
        enqueued_ns: when, in nanoseconds of the trace's clock: all its tensors are there.
        part_starts: at which byte of each tensor begins the part that it is of, -1 for whole ones.
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
        """Name and beginning of each tensor, which a step has once."""
        starts = self.part_starts or (-1,) * len(self.tensor_names)
        return tuple(zip(self.tensor_names, starts, strict=True))


@dataclass(frozen=True)
class LaneEvent:
    """A lane's part of one all-reduce, or a phase of it.

    Attributes:
        phase: "" for all of it, else "wait" (for the other ranks' first bytes) or "exchange".
        lane: which.
        group: index of the tensor group; -1 where no plan was applied.
        sequence: counts the all-reduces of the process.
        num_threads: communication threads of the all-reduce; 0 in a phase's event.
        num_bytes: size of the whole all-reduce; 0 in a phase's event.
        step: the step it belongs to; -1 in a phase's event.
        start_ns: by the trace's clock.
        end_ns: by the trace's clock.
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
    """The trace of one host; all times are nanoseconds of the trace's clock.

    Attributes:
        events: the ops.
        calls: all-reduces submitted to the engine, by time.
        lanes: what the lanes did, by time.
    """

    events: Events
    calls: tuple[AllReduceCall, ...]
    lanes: tuple[LaneEvent, ...]


def find_trace(path: Path) -> Path:
    """The trace that `path` means.

    Args:
        path: a trace; or a folder with traces, where the newest session counts: a log directory,
            or any folder above or below it.

    Raises:
        OSError: there is no `path`.
        ValueError: it holds no trace, or its newest session holds several.
    """
    if not path.is_dir():
        path.stat()
        return path
    found = sorted(found for found in path.rglob(f"*{_SUFFIX}"))
    if not found:
        raise ValueError(
            f"{str(path)!r} holds no trace of TensorFlow's profiler (*{_SUFFIX}), nor"
            " does any folder below it"
        )
    newest = max(found, key=lambda one: (one.parent.name, one.stat().st_mtime_ns)).parent
    chosen = [one for one in found if one.parent == newest]
    if len(chosen) > 1:
        names = ", ".join(repr(one.name) for one in chosen)
        raise ValueError(f"{str(newest)!r} holds {len(chosen)} traces, name one: {names}")
    return chosen[0]


def read_trace(path: Path) -> Trace:
    """Reads a trace from disk. Needs TensorFlow to be installed, for the format.

    Raises:
        ImportError: TensorFlow is not installed.
        OSError: the file cannot be read.
        ValueError: it is no trace, or one without events of the host.
    """
    content = path.read_bytes()
    space = _messages().XSpace()
    try:
        space.ParseFromString(content)
    except Exception as error:  # DecodeError moves between protobuf versions
        raise ValueError(f"{str(path)!r} is no trace of TensorFlow's profiler ({error})") from None
    planes = [plane for plane in space.planes if plane.name == _HOST_PLANE]
    if not planes:
        raise ValueError(f"{str(path)!r} is a trace without a plane {_HOST_PLANE}")
    return _read_plane(planes[0])


@functools.cache
def _messages() -> Any:
    """The module of the format. Its file alone: to import TensorFlow takes seconds."""
    installed = importlib.util.find_spec("tensorflow")
    if installed is None or not installed.submodule_search_locations:
        raise ImportError("TensorFlow is not installed, and its profiler's format comes with it")
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
    # What begins at the same time begins with the whole.
    lanes.sort(key=lambda one: (one.start_ns, -one.end_ns, one.lane))
    return Trace(events, tuple(calls), tuple(lanes))


def _is_op(name: str) -> bool:
    """An op's event is named `node:Type`; tf.data's iterators have `::` in theirs."""
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
    """Reads a list that is separated by semicolons; one number alone is no text any more."""
    return tuple(urllib.parse.unquote(item) for item in str(text).split(";"))


def _node(tensor: str) -> str:
    """The node of `node:output`."""
    return tensor.partition(":")[0]
