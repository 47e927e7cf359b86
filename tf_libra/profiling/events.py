"""Op events of a trace, as arrays."""

import dataclasses

import numpy as np


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
