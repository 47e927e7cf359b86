"""Spread of a quantity over several steps."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tf_libra.internal import validation
from tf_libra.reporting.records.json_codec import set_field


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a quantity over several steps, in seconds."""

    low: float
    median: float
    high: float

    def __post_init__(self) -> None:
        for field in ("low", "median", "high"):
            set_field(self, field, validation.real(field, getattr(self, field)))
        if not self.low <= self.median <= self.high:
            raise ValueError(
                "low, median and high must ascend, got "
                f"{self.low!r}, {self.median!r}, {self.high!r}"
            )

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Compute the spread of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)


def checked(field: str, value: Any) -> Spread:
    """Return the spread of a field, which may be a JSON value, or raise `ValueError`."""
    if isinstance(value, Spread):
        return value
    return validation.built(field, value, Spread)
