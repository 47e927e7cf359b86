"""Interface of cost models, and the times that follow from their rates."""

import abc
import dataclasses
import math
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_libra.internal import formatting, validation
from tf_libra.internal.codec import Document
from tf_libra.internal.values import Int32Count, NonNegative


class CostModel(Document, abc.ABC):
    """Cost of all-reduces and of backward computation, exclusive and overlapped.

    Methods take scalars or arrays, which broadcast, and return float64. A rate that is not positive
    at the requested number of threads raises `ValueError`. With one worker communication takes 0.

    In a step an all-reduce waits for the last rank and for a core before it transmits. Computation
    keeps its speed meanwhile, so waiting is not a part of the startup overhead.

    Attributes:
      num_workers: N.
      rounding_per_byte: seconds of a rank's cores to round a byte of float32 to 16 bits per element
        before it travels, and back; 0: not measured.
      waiting: mean seconds that an all-reduce waits; 0 if all ranks are ready simultaneously.
    """

    num_workers: Int32Count
    rounding_per_byte: NonNegative
    waiting: NonNegative = 0.0

    INDENT: ClassVar = 1

    @property
    @abc.abstractmethod
    def startup_seconds(self) -> float:
        """Startup overhead a of an all-reduce that computation overlaps."""

    @property
    @abc.abstractmethod
    def exclusive_startup_seconds(self) -> float:
        """Startup overhead a of an all-reduce that no computation overlaps."""

    @property
    def waiting_seconds(self) -> float:
        """Seconds that an all-reduce waits for ranks and cores; 0 for one worker."""
        return self.waiting if self.num_workers > 1 else 0.0

    @property
    def constant_seconds(self) -> float:
        """Seconds of an overlapped all-reduce that do not depend on its bytes: a and waiting."""
        return self.startup_seconds + self.waiting_seconds

    @property
    def exclusive_constant_seconds(self) -> float:
        """Seconds of an exclusive all-reduce that do not depend on its bytes: a and waiting."""
        return self.exclusive_startup_seconds + self.waiting_seconds

    def without_waiting(self) -> Self:
        """Returns the model of all-reduces for which all ranks are ready simultaneously."""
        return dataclasses.replace(cast(Any, self), waiting=0.0) if self.waiting else self

    @abc.abstractmethod
    def compute_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """Share of its speed that computation keeps during an all-reduce of r threads."""

    @abc.abstractmethod
    def overlapped_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """Bytes per second that an all-reduce transmits while computation overlaps it."""

    @abc.abstractmethod
    def exclusive_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """Bytes per second that an all-reduce transmits without computation."""

    @abc.abstractmethod
    def with_workers(self, num_workers: int) -> "CostModel":
        """Returns the model of the same hardware with another number of workers."""

    @abc.abstractmethod
    def with_link_rate(self, factor: float) -> "CostModel":
        """Returns the model with links that are `factor` times as fast, and the same processors."""

    @abc.abstractmethod
    def contention_free(self) -> "CostModel":
        """Returns the ideal without contention, MG-CF of LIBRA's evaluation."""

    def on_wire(self, share: float, rounded: float = 1.0) -> "CostModel":
        """Returns the model of all-reduces whose float32 elements travel in 16 bits.

        A byte of the tensors then takes the time of its `share` on the wire and of its rounding.

        Args:
          share: share of the tensors' bytes that travels (`Plan.wire_share`); 1: none is rounded.
          rounded: bytes of the tensors for each one that counts, since zeros are rounded, too
            (`BackwardProfile.bytes_per_effective`).
        """
        if share == 1 or self.num_workers == 1:
            return self
        # All float32 bytes are rounded, and half of each is saved.
        rounding = self.rounding_per_byte * 2 * (1 - share) * rounded
        return self._on_wire(share, rounding / float(self.transmitted_bytes(1)))

    def with_rounding(self, rounding_per_byte: float) -> "CostModel":
        """Returns the model with a measured `rounding_per_byte`."""
        changed = dataclasses.replace(cast(Any, self), rounding_per_byte=rounding_per_byte)
        return cast(CostModel, changed)

    @abc.abstractmethod
    def one_phase(self) -> "CostModel":
        """Returns the model of a reduce-scatter or an all-gather: half the bytes and hops."""

    @abc.abstractmethod
    def _on_wire(self, share: float, rounding: float) -> "CostModel":
        """Returns the model with `rounding` seconds per byte of c_hat in addition."""

    @abc.abstractmethod
    def formula(self) -> str:
        """Format the fitted formula for a reader."""

    def _waiting_text(self) -> str:
        return f", waiting {formatting.time(self.waiting)}" if self.waiting else ""

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """Read a model of this class; of `CostModel`, a model of any form."""
        if cls is not CostModel:
            return super().from_document(document)
        known = (kind for kind in CostModel.__subclasses__() if hasattr(kind, "FORMAT"))
        kinds = {kind.FORMAT: kind for kind in known}
        kind = kinds.get(str(document.get("format")))
        if kind is None:
            found = validation.shortened(document.get("format"))
            raise ValueError(f"format must be one of {', '.join(kinds)}, got {found}")
        return cast(Self, kind.from_document(document))

    def transmitted_bytes(self, num_bytes: ArrayLike) -> NDArray[np.float64]:
        """Bytes that a worker sends in an all-reduce of c bytes: c_hat (LIBRA, Eq. 4)."""
        factor = 2 * (self.num_workers - 1) / self.num_workers
        return np.asarray(factor * np.asarray(num_bytes, np.float64))

    def computation_seconds(
        self, compute_seconds: ArrayLike, num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        """Time g(b, r) of b contention-free seconds of computation, fully overlapped (Eq. 5)."""
        return np.asarray(compute_seconds, np.float64) / self.compute_rate(num_threads)

    def overlapped_seconds(
        self, num_bytes: ArrayLike, num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        """Time p(c, r) to transmit c bytes, fully overlapped (Eq. 6), without startup overhead."""
        return self.transmitted_bytes(num_bytes) / self.overlapped_rate(num_threads)

    def exclusive_seconds(
        self, num_bytes: ArrayLike, num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        """Time q(c, r) to transmit c bytes without overlap and without startup overhead."""
        return self.transmitted_bytes(num_bytes) / self.exclusive_rate(num_threads)

    def overlapped_all_reduce(
        self, num_bytes: ArrayLike, num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        """Time p(c, r) + a, with waiting, of an overlapped all-reduce.

        The result is 0 for 0 bytes, which are not launched.
        """
        transmission = self.overlapped_seconds(num_bytes, num_threads)
        launched = np.asarray(num_bytes) > 0
        return np.where(launched, transmission + self.constant_seconds, 0.0)

    def exclusive_all_reduce(
        self, num_bytes: ArrayLike, num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        """Time q(c, r) + a, with waiting, of an exclusive all-reduce.

        The result is 0 for 0 bytes, which are not launched.
        """
        transmission = self.exclusive_seconds(num_bytes, num_threads)
        launched = np.asarray(num_bytes) > 0
        return np.where(launched, transmission + self.exclusive_constant_seconds, 0.0)

    def mean_compute_rate(
        self, num_bytes: ArrayLike, num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        """Share of its speed that computation keeps during a whole overlapped all-reduce.

        Computation keeps its speed while the all-reduce waits, and `compute_rate` after that.
        """
        rate = self.compute_rate(num_threads)
        if not self.waiting_seconds:
            return np.broadcast_to(rate, np.broadcast_shapes(np.shape(num_bytes), rate.shape))
        seconds = self.overlapped_all_reduce(num_bytes, num_threads)
        waited = np.divide(
            self.waiting_seconds, seconds, out=np.zeros_like(seconds), where=np.asarray(seconds) > 0
        )
        return np.asarray(waited + (1 - waited) * rate)


# Lanes arrange this many hosts of one rank, or more, as a grid (ops/lanes/grid.h).
LEAST_SQUARE = 16


def num_hops(num_workers: int, hops: int | None, workers_per_host: int | None) -> int:
    """Returns the sequential hops of an all-reduce among N workers; 0 for one worker.

    Args:
      num_workers: N.
      hops: on one level, for any N; None: 2(N-1), as in a ring all-reduce (LIBRA, Eq. 4).
      workers_per_host: ranks per host. If N ranks fill several such hosts, an all-reduce has two
        levels, within and across hosts, and twice `hops`. With one rank per host the levels are
        rows and columns, if the hosts form a grid (`row_of_square`). None: it has one level.
    """
    if hops is None or num_workers == 1:
        return 2 * (num_workers - 1)
    if workers_per_host == 1:
        return 2 * hops if row_of_square(num_workers) else hops
    num_hosts, left = divmod(num_workers, workers_per_host or num_workers)
    return 2 * hops if num_hosts > 1 and left == 0 else hops


def row_of_square(num_hosts: int, least: int = LEAST_SQUARE) -> int | None:
    """Returns the row length of the grid of hosts with one rank each (ops/lanes/grid.h).

    Args:
      num_hosts: at least 1.
      least: fewer hosts exchange all with all.

    Returns:
      The longer side of the grid nearest to a square; None without one, as for a prime number.
    """
    sides = (side for side in range(math.isqrt(num_hosts), 1, -1) if num_hosts % side == 0)
    shorter = next(sides, None) if num_hosts >= least else None
    return num_hosts // shorter if shorter else None
