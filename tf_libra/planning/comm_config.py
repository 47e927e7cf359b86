"""Communication settings that a search tunes by measured steps."""

from dataclasses import dataclass
from typing import Any

from tf_libra.internal import formatting, validation


@dataclass(frozen=True, order=True)
class CommConfig:
    """Size, concurrency and threads of all-reduces (AIACC, section VI).

    Attributes:
      unit_bytes: most bytes of an all-reduce.
      num_streams: number of concurrent all-reduces.
      num_threads: communication threads of each all-reduce.

    Raises:
      ValueError: a number below 1.
    """

    unit_bytes: int
    num_streams: int
    num_threads: int

    def __post_init__(self) -> None:
        validation.integer("unit_bytes", self.unit_bytes, minimum=1)
        validation.integer("num_streams", self.num_streams, 1, validation.MAX_INT32)
        validation.integer("num_threads", self.num_threads, 1, validation.MAX_INT32)

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


def setting_of(document: Any) -> CommConfig:
    """Read settings from JSON values; a `ValueError` names the field that is wrong."""
    return CommConfig(**validation.keys("setting", document, *validation.field_names(CommConfig)))
