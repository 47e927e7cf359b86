"""Cluster: devices and the rates between them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_libra.internal import validation

_FORMAT = "tf-libra cluster"
_VERSION = 1


@dataclass(frozen=True)
class Cluster:
    """Equal devices and the rate between every two of them (SPP, section III-A).

    Attributes:
      bytes_per_second: b, shape [V][V]: symmetric, 0 without a link; the diagonal is 0.
      nodes: node (server) of each device, shape [V]; None: unknown.
      memory_bytes: memory per device for parameters and their gradients; None: unlimited.

    Raises:
      ValueError: not square, not symmetric, a rate is negative or not finite, or no memory.
    """

    bytes_per_second: tuple[tuple[float, ...], ...]
    nodes: tuple[int, ...] | None = None
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        rows = validation.sequence("bytes_per_second", self.bytes_per_second)
        if not rows:
            raise ValueError("bytes_per_second must have a row for at least one device, got none")
        frozen = []
        for a, row in enumerate(rows):
            values = validation.sequence(f"bytes_per_second[{a}]", row)
            if len(values) != len(rows):
                raise ValueError(
                    f"bytes_per_second must be square: row {a} must have {len(rows)} entries, "
                    f"got {len(values)}"
                )
            # The diagonal is ignored: a device needs no link to itself.
            frozen.append(
                tuple(
                    0.0
                    if a == b
                    else validation.real(f"bytes_per_second[{a}][{b}]", rate, minimum=0)
                    for b, rate in enumerate(values)
                )
            )
        for a, values in enumerate(frozen):
            for b in range(a):
                if values[b] != frozen[b][a]:
                    raise ValueError(
                        f"bytes_per_second must be symmetric: [{a}][{b}] is {values[b]!r}, "
                        f"[{b}][{a}] is {frozen[b][a]!r}"
                    )
        object.__setattr__(self, "bytes_per_second", tuple(frozen))
        if self.nodes is not None:
            nodes = tuple(
                validation.integer(f"nodes[{index}]", node)
                for index, node in enumerate(validation.sequence("nodes", self.nodes))
            )
            if len(nodes) != len(frozen):
                raise ValueError(
                    f"nodes must have one entry per device: {len(frozen)}, got {len(nodes)}"
                )
            object.__setattr__(self, "nodes", nodes)
        if self.memory_bytes is not None:
            memory = validation.real("memory_bytes", self.memory_bytes, above=0)
            object.__setattr__(self, "memory_bytes", memory)

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
        """Return the least rate between a device of one set and a device of the other."""
        return float(self.rates[np.ix_(senders, receivers)].min())

    def rate_among(self, devices: Sequence[int]) -> float:
        """Return the least rate between two of these devices; infinite for a single one."""
        among = self.rates[np.ix_(devices, devices)]
        return float(among[~np.eye(len(devices), dtype=bool)].min(initial=np.inf))

    def to_json(self) -> str:
        """Return the cluster as JSON text, which `from_json` reads back unchanged."""
        value: dict[str, object] = {"bytes_per_second": self.bytes_per_second}
        if self.nodes is not None:
            value["nodes"] = self.nodes
        if self.memory_bytes is not None:
            value["memory_bytes"] = self.memory_bytes
        return json.dumps({"format": _FORMAT, "version": _VERSION} | value)

    @classmethod
    def from_json(cls, document: str) -> "Cluster":
        """Read a cluster from JSON text; a `ValueError` names the field that is wrong."""
        value = validation.keys(
            _FORMAT,
            validation.json_document(_FORMAT, _VERSION, document),
            ("bytes_per_second",),
            ("nodes", "memory_bytes"),
        )
        return cls(**value)
