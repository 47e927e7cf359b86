"""Interface of cost models, and the times that follow from their rates."""

import abc
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_libra.internal.codec import Document
from tf_libra.internal.values import Int32Count


class CostModel(Document, abc.ABC):
    """Cost of all-reduces and of backward computation, exclusive and overlapped.

    Methods take scalars or arrays, which broadcast, and return float64. A rate that is not positive
    at the requested number of threads raises `ValueError`. With one worker communication takes 0.

    Attributes:
      num_workers: N.
    """

    num_workers: Int32Count

    INDENT: ClassVar = 1

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
        """Share of its speed that computation keeps during an all-reduce of r threads."""

    @abc.abstractmethod
    def overlapped_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """Bytes per second that an all-reduce transmits while computation overlaps it."""

    @abc.abstractmethod
    def exclusive_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """Bytes per second that an all-reduce transmits without computation."""

    @abc.abstractmethod
    def with_workers(self, num_workers: int) -> "CostModel":
        """Return the model of the same hardware with another number of workers."""

    @abc.abstractmethod
    def contention_free(self) -> "CostModel":
        """Return the ideal without contention, MG-CF of LIBRA's evaluation."""

    @abc.abstractmethod
    def formula(self) -> str:
        """Format the fitted formula for a reader."""

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
        """Time p(c, r) + a of an overlapped all-reduce; 0 for 0 bytes, which are not launched."""
        transmission = self.overlapped_seconds(num_bytes, num_threads)
        launched = np.asarray(num_bytes) > 0
        return np.where(launched, transmission + self.startup_seconds, 0.0)

    def exclusive_all_reduce(
        self, num_bytes: ArrayLike, num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        """Time q(c, r) + a of an exclusive all-reduce; 0 for 0 bytes, which are not launched."""
        transmission = self.exclusive_seconds(num_bytes, num_threads)
        launched = np.asarray(num_bytes) > 0
        return np.where(launched, transmission + self.exclusive_startup_seconds, 0.0)
