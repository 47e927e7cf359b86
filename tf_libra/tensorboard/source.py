"""What is read of a log directory to answer the tab: by TensorBoard, or without it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Series:
    """What is known of a series of summaries without reading it.

    Attributes:
      content: what its plugin data say of it; see `tf_libra.records.kinds`.
      last_step: the highest step of its values.
      last_written: when its last value was written, in seconds since the epoch.
    """

    content: bytes
    last_step: int
    last_written: float


class Source(Protocol):
    """One log directory. Runs are named by their path from it."""

    def records(self) -> Mapping[str, Mapping[str, Series]]:
        """All series of records, by run and tag."""
        ...

    def scalars(self) -> Mapping[str, Mapping[str, Series]]:
        """All series of scalars, by run and tag."""
        ...

    def documents(self, run: str, tag: str, count: int = 1) -> Sequence[tuple[float, str]]:
        """At most `count` records of a series, each with when it was written; the last is there.

        Raises:
          ValueError: a value of the series is no text.
        """
        ...

    def points(
        self, run: str, tags: Sequence[str], count: int
    ) -> Mapping[str, Sequence[tuple[int, float]]]:
        """At most `count` points (step, value) of each of these series of scalars; the last is."""
        ...

    def graph_written(self, run: str) -> float | None:
        """When the last graph of a run was written; None without one."""
        ...
