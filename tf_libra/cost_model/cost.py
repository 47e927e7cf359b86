"""What a cost model has to say, whatever its form; the rest follows from it."""

import abc

import numpy as np
from numpy.typing import ArrayLike, NDArray


class CostModel(abc.ABC):
    """What all-reduces and backward computation cost, alone and beside each other.

    Methods take scalars or arrays, which broadcast, and return float64. A rate that is not positive
    at the asked number of threads raises `ValueError`; with one worker communication takes 0.

    Attributes:
      num_workers: N.
    """

    num_workers: int

    @property
    @abc.abstractmethod
    def startup_seconds(self) -> float:
        """Startup overhead a of an all-reduce that computation overlaps."""

    @property
    @abc.abstractmethod
    def exclusive_startup_seconds(self) -> float:
        """Startup overhead a of an all-reduce that no computation overlaps."""

    @abc.abstractmethod
    def compute_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """The share of its speed that computation keeps beside an all-reduce of r threads."""

    @abc.abstractmethod
    def overlapped_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """Bytes per second that an all-reduce transmits beside computation."""

    @abc.abstractmethod
    def exclusive_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """Bytes per second that an all-reduce transmits alone."""

    @abc.abstractmethod
    def with_workers(self, num_workers: int) -> "CostModel":
        """The same hardware with another number of workers."""

    @abc.abstractmethod
    def contention_free(self) -> "CostModel":
        """The ideal without contention, MG-CF of LIBRA's evaluation."""

    @abc.abstractmethod
    def formula(self) -> str:
        """The fitted formula, for a reader."""

    @abc.abstractmethod
    def to_json(self) -> str:
        """Returns the model as JSON text; `cost_model_from_json` reads it back unchanged."""

    def transmitted_bytes(self, num_bytes: ArrayLike) -> NDArray[np.float64]:
        """c_hat, what a ring all-reduce of c bytes sends per worker (LIBRA, Eq. 4)."""
        factor = 2 * (self.num_workers - 1) / self.num_workers
        return np.asarray(factor * np.asarray(num_bytes, np.float64))

    def computation_seconds(
        self, compute_seconds: ArrayLike, num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        """g(b, r): computation of b contention-free seconds, fully overlapped (Eq. 5)."""
        return np.asarray(compute_seconds, np.float64) / self.compute_rate(num_threads)

    def overlapped_seconds(
        self, num_bytes: ArrayLike, num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        """p(c, r): transmission of c bytes, fully overlapped (Eq. 6), without startup overhead."""
        return self.transmitted_bytes(num_bytes) / self.overlapped_rate(num_threads)

    def exclusive_seconds(
        self, num_bytes: ArrayLike, num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        """q(c, r): transmission of c bytes without any overlap, without startup overhead."""
        return self.transmitted_bytes(num_bytes) / self.exclusive_rate(num_threads)

    def overlapped_all_reduce(
        self, num_bytes: ArrayLike, num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        """p(c, r) + a, or 0 for 0 bytes: nothing is launched."""
        transmission = self.overlapped_seconds(num_bytes, num_threads)
        launched = np.asarray(num_bytes) > 0
        return np.where(launched, transmission + self.startup_seconds, 0.0)

    def exclusive_all_reduce(
        self, num_bytes: ArrayLike, num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        """q(c, r) + a, or 0 for 0 bytes: nothing is launched."""
        transmission = self.exclusive_seconds(num_bytes, num_threads)
        launched = np.asarray(num_bytes) > 0
        return np.where(launched, transmission + self.exclusive_startup_seconds, 0.0)
