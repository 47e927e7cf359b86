"""Interface to a log directory, with or without TensorBoard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Series:
    """Metadata of a series of summaries.

    Attributes:
      content: plugin data; see `tf_libra.reporting.records.record_types`.
      last_step: highest step of its values.
      last_written: time of its last value, in seconds since the epoch.
    """

    content: bytes
    last_step: int
    last_written: float


class LogSource(Protocol):
    """Logs directory, with runs named by their path."""

    def records(self) -> Mapping[str, Mapping[str, Series]]:
        """Returns all series of records, by run and tag."""
        ...

    def scalars(self) -> Mapping[str, Mapping[str, Series]]:
        """Returns all series of scalars, by run and tag."""
        ...

    def documents(self, run: str, tag: str, count: int = 1) -> Sequence[tuple[float, str]]:
        """Returns at most `count` records of a series with their times, including the last.

        Raises:
          ValueError: a value of the series is not a text.
        """
        ...

    def points(
        self, run: str, tags: Sequence[str], count: int
    ) -> Mapping[str, Sequence[tuple[int, float]]]:
        """Returns at most `count` points (step, value) per scalar series, including the last."""
        ...

    def graph_written(self, run: str) -> float | None:
        """Returns the time of a run's last graph; None without one."""
        ...
