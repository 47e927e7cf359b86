"""A setting of all-reduces: what is searched where a plan is tuned by measured steps."""

from dataclasses import dataclass
from typing import Any

from tf_libra import checks, units


@dataclass(frozen=True, order=True)
class Setting:
    """How large all-reduces are, how many run at once, and by how many threads (AIACC, VI).

    Attributes:
      unit_bytes: the most bytes of an all-reduce.
      num_streams: how many all-reduces run at once.
      num_threads: communication threads of each.

    Raises:
      ValueError: a number below 1.
    """

    unit_bytes: int
    num_streams: int
    num_threads: int

    def __post_init__(self) -> None:
        checks.integer("unit_bytes", self.unit_bytes, minimum=1)
        checks.integer("num_streams", self.num_streams, 1, checks.MAX_INT32)
        checks.integer("num_threads", self.num_threads, 1, checks.MAX_INT32)

    @property
    def num_lanes(self) -> int:
        """Threads at once."""
        return self.num_streams * self.num_threads

    def describe(self) -> str:
        """In words."""
        return (
            f"units of {units.size(self.unit_bytes)} on {self.num_streams} streams of"
            f" {self.num_threads} threads"
        )


def setting_of(document: Any) -> Setting:
    """Reads a setting from JSON values; `ValueError` names what is wrong with it."""
    return Setting(**checks.keys("setting", document, *checks.field_names(Setting)))
