"""Cluster: devices and the rates between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_libra.internal import validation
from tf_libra.internal.codec import Document
from tf_libra.internal.values import Natural, Positive


def _rates(field: str, value: Any) -> tuple[tuple[float, ...], ...]:
    """Returns a symmetric matrix of rates without its diagonal, or raises `ValueError`."""
    rows = validation.sequence(field, value)
    if not rows:
        raise ValueError(f"{field} must have a row for at least one device, got none")
    rates: list[tuple[float, ...]] = []
    for a, row in enumerate(rows):
        entries = validation.sequence(f"{field}[{a}]", row)
        if len(entries) != len(rows):
            raise ValueError(
                f"{field} must be square: row {a} must have {len(rows)} entries, got {len(entries)}"
            )
        # A device needs no link to itself.
        rates.append(
            tuple(
                0.0 if a == b else validation.real(f"{field}[{a}][{b}]", rate, minimum=0)
                for b, rate in enumerate(entries)
            )
        )
    for a, row in enumerate(rates):
        for b in range(a):
            if row[b] != rates[b][a]:
                raise ValueError(
                    f"{field} must be symmetric: [{a}][{b}] is {row[b]!r}, [{b}][{a}] is "
                    f"{rates[b][a]!r}"
                )
    return tuple(rates)


@dataclass(frozen=True)
class Cluster(Document):
    """Equal devices and the rate between every two of them (SPP, section III-A).

    Attributes:
      bytes_per_second: b, shape [V][V]: symmetric, 0 without a link; the diagonal is 0.
      nodes: node (server) of each device, shape [V]; None: unknown.
      memory_bytes: memory per device for parameters and their gradients; None: unlimited.
      all_reduce_efficiency: rate of a ring all-reduce to the least rate of its links. SPP's Eq. 1
        has 1; devices that also add and copy reach less.

    Raises:
      ValueError: not square, not symmetric, a rate is negative or not finite, no memory, or no
        efficiency.
    """

    bytes_per_second: Annotated[tuple[tuple[float, ...], ...], _rates]
    nodes: tuple[Natural, ...] | None = None
    memory_bytes: Positive | None = None
    all_reduce_efficiency: Positive = 1.0

    FORMAT: ClassVar = "tf-libra cluster"
    SPARSE: ClassVar = ("nodes", "memory_bytes", "all_reduce_efficiency")

    def _validate(self) -> None:
        if self.nodes is not None:
            validation.same_length("nodes", self.nodes, "device", self.num_devices)

    @classmethod
    def from_bandwidth(
        cls,
        bytes_per_second: ArrayLike,
        nodes: Sequence[int] | None = None,
        memory_bytes: float | None = None,
    ) -> "Cluster":
        """Build a cluster from the rates between its devices.

        Args:
          bytes_per_second: shape [V, V], symmetric; 0: no link. The diagonal is ignored.
          nodes: node of each device, shape [V], for strategies that distinguish nodes.
          memory_bytes: memory per device for parameters and their gradients; None: unlimited.

        Raises:
          ValueError: not square, not symmetric, a rate is negative or not finite, or no memory.
        """
        rows = validation.sequence("bytes_per_second", bytes_per_second)
        each = None if nodes is None else validation.sequence("nodes", nodes)
        return cls(rows, each, memory_bytes)

    @property
    def num_devices(self) -> int:
        """Number V of devices."""
        return len(self.bytes_per_second)

    @cached_property
    def rates(self) -> NDArray[np.float64]:
        """Rates `bytes_per_second` as an array, shape [V, V]."""
        array = np.array(self.bytes_per_second, np.float64)
        array.flags.writeable = False
        return array

    def rate_between(self, senders: Sequence[int], receivers: Sequence[int]) -> float:
        """Returns the least rate between a device of one set and a device of the other."""
        return float(self.rates[np.ix_(senders, receivers)].min())

    def rate_among(self, devices: Sequence[int]) -> float:
        """Returns the least rate between two of these devices; infinite for a single one."""
        among = self.rates[np.ix_(devices, devices)]
        return float(among[~np.eye(len(devices), dtype=bool)].min(initial=np.inf))

    def all_reduce_rate(self, devices: Sequence[int]) -> float:
        """Returns the rate of a ring all-reduce among devices; infinite for a single one."""
        return self.all_reduce_efficiency * self.rate_among(devices)
