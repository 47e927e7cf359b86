"""Communication settings that a search tunes by measured steps."""

from dataclasses import dataclass

from tf_libra.internal import formatting
from tf_libra.internal.values import Count, Int32Count, Value


@dataclass(frozen=True, order=True)
class CommConfig(Value):
    """Size, concurrency and threads of all-reduces (AIACC, section VI).

    Attributes:
      unit_bytes: most bytes of an all-reduce.
      num_streams: number of concurrent all-reduces.
      num_threads: communication threads of each all-reduce.

    Raises:
      ValueError: a number below 1.
    """

    unit_bytes: Count
    num_streams: Int32Count
    num_threads: Int32Count

    @property
    def num_lanes(self) -> int:
        """Number of concurrent communication threads."""
        return self.num_streams * self.num_threads

    def describe(self) -> str:
        """Describe the settings in words."""
        return (
            f"units of {formatting.size(self.unit_bytes)} on {self.num_streams} streams of"
            f" {self.num_threads} threads"
        )
