"""Op events of a trace, as arrays."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class NodeRuns(NamedTuple):
    """Runs of the nodes that have an event, by name.

    Attributes:
      first_ns: start of the first run.
      last_ns: end of the last run.
      num_runs: number of runs.
    """

    first_ns: Mapping[str, int]
    last_ns: Mapping[str, int]
    num_runs: Mapping[str, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Events:
    """Op events of one trace, over all threads of the host.

    TensorFlow's executor does not trace every op. Kernels declared cheap (Reshape, Identity, Const)
    never appear; a kernel that ran about 70 times in less than about 8000 cycles stops appearing.

    Attributes:
      node_names: names of the nodes, each (name, type) once.
      op_types: executed type of each node, for example `_FusedMatMul`.
      node: int32 array (events,), index into `node_names`.
      start_ns: int64 array (events,), CLOCK_REALTIME nanoseconds.
      end_ns: int64 array (events,), CLOCK_REALTIME nanoseconds.
    """

    node_names: tuple[str, ...]
    op_types: tuple[str, ...]
    node: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray

    def __post_init__(self) -> None:
        if len(self.node_names) != len(self.op_types):
            raise ValueError(
                f"op_types has {len(self.op_types)} entries, node_names {len(self.node_names)}"
            )
        if not len(self.node) == len(self.start_ns) == len(self.end_ns):
            raise ValueError(
                "node, start_ns and end_ns differ in length: "
                f"{len(self.node)}, {len(self.start_ns)}, {len(self.end_ns)}"
            )

    def __len__(self) -> int:
        return len(self.node)

    def within(self, window: tuple[int, int]) -> "Events":
        """Returns the events that start and end inside `window` = (start_ns, stop_ns)."""
        start_ns, stop_ns = window
        inside = (self.start_ns >= start_ns) & (self.end_ns <= stop_ns)
        return dataclasses.replace(
            self,
            node=self.node[inside],
            start_ns=self.start_ns[inside],
            end_ns=self.end_ns[inside],
        )

    def runs_within(self, window: tuple[int, int]) -> NodeRuns:
        """Returns the runs of the nodes inside `window` = (start_ns, stop_ns)."""
        inside = self.within(window)
        counts = np.bincount(inside.node, minlength=len(self.node_names))
        starts = np.full(len(self.node_names), np.iinfo(np.int64).max)
        ends = np.full(len(self.node_names), np.iinfo(np.int64).min)
        np.minimum.at(starts, inside.node, inside.start_ns)
        np.maximum.at(ends, inside.node, inside.end_ns)
        first_ns: dict[str, int] = {}
        last_ns: dict[str, int] = {}
        num_runs: Counter[str] = Counter()
        for label in np.flatnonzero(counts).tolist():
            name, start, end = self.node_names[label], int(starts[label]), int(ends[label])
            first_ns[name] = min(start, first_ns.get(name, start))
            last_ns[name] = max(end, last_ns.get(name, end))
            num_runs[name] += int(counts[label])
        return NodeRuns(first_ns, last_ns, num_runs)
