"""Cost model of CPUs whose cores computation and lanes share.

LIBRA's model (section III-A) describes GPUs, where computation loses the threads that communicate.
CPUs share their cores by time instead, which conserves work: computation loses the CPU time that
lanes spend per byte, for any number of lanes, and overlap hides only waiting.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_libra.cost_model.base import CostModel, num_hops
from tf_libra.cost_model.contention import ContentionModel
from tf_libra.internal import formatting
from tf_libra.internal.values import Int32Count, NonNegative, Positive

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class ProcessorModel(CostModel):
    """Model of all-reduces whose lanes time-share the cores with computation.

    With u the CPU seconds per byte, w(r) = w·(1 + e/r) the wire seconds per byte, and
    s(r) = h·√r/(1 + h·√r) the share of the cores that r lanes get during computation, a byte takes

      p = √(w(r)² + (u / s(r))²)   overlapped; computation keeps 1 - u/p of its speed, and
      q = max(w(r), u)             exclusive.

    Alone, lanes use wire and cores concurrently. During computation they get the cores in turns,
    between which the wire may run dry: if both take about as long, a byte takes longer than on
    either (docs/benchmarks.md, "How true the model is").

    Lanes take turns in waiting for their peers, so r of them compete for the cores like √r threads:
    so measured over shared memory, Unix sockets and TCP (docs/benchmarks.md, "Lanes and Gloo").

    Attributes:
      num_workers: N.
      startup: startup overhead a of an all-reduce that makes two hops, seconds.
      work_per_byte: u, seconds of a rank's cores per byte of c_hat.
      wire_per_byte: w, seconds per byte of c_hat; 0 if only CPU time limits.
      lane_weight: h, scheduler weight of a lane against a computing thread on the same core; 1 is
        a fair scheduler.
      lane_gap: e, share of the wire's time that one lane leaves unused between two pieces.
      hops: sequential hops of an all-reduce. Lanes exchange with all ranks of a level concurrently:
        2 hops for any N. None: 2(N-1), as in a ring all-reduce.
      workers_per_host: ranks per host. If N ranks fill several such hosts, an all-reduce has two
        levels, within and across hosts, and twice `hops`. With one rank per host it has two levels
        if the hosts form a grid (`hops.row_of_square`). None: it has one level.
      rounding_per_byte: see `CostModel`.
      waiting: mean seconds that an all-reduce waits for ranks and cores.

    Raises:
      ValueError: a parameter is not finite or lies outside its range.
    """

    num_workers: Int32Count
    startup: NonNegative
    work_per_byte: Positive
    wire_per_byte: NonNegative = 0.0
    lane_weight: Positive = 1.0
    lane_gap: NonNegative = 0.0
    hops: Int32Count | None = 2
    workers_per_host: Int32Count | None = None
    rounding_per_byte: NonNegative = 0.0
    waiting: NonNegative = 0.0

    FORMAT: ClassVar = "tf-libra processor model"
    SPARSE: ClassVar = ("hops", "workers_per_host", "rounding_per_byte", "waiting")

    @property
    def num_hops(self) -> int:
        """Sequential hops of an all-reduce among N workers; 0 for one worker."""
        return num_hops(self.num_workers, self.hops, self.workers_per_host)

    @property
    def startup_seconds(self) -> float:
        """Startup overhead a of an overlapped all-reduce; every hop takes the same time."""
        return self.num_hops * self.startup / 2

    @property
    def exclusive_startup_seconds(self) -> float:
        """Startup overhead a of an exclusive all-reduce; overlap does not change it."""
        return self.startup_seconds

    def compute_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """Share of the cores that lanes leave to computation: 1 - u/p."""
        rate = 1 - self.work_per_byte * self.overlapped_rate(num_threads)
        if not np.all(rate > 0):  # only if one lane counts for 2**53 computing threads
            raise ValueError(
                f"compute: 1 - u/p must be positive at r = {num_threads!r}, got {rate.min():.6g}"
            )
        return rate

    def overlapped_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """Bytes per second of an overlapped all-reduce: 1/p."""
        return 1 / self._seconds_per_byte(num_threads)[0]

    def exclusive_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """Bytes per second of an exclusive all-reduce: 1/q."""
        return 1 / self._seconds_per_byte(num_threads)[1]

    def with_workers(self, num_workers: int) -> "ProcessorModel":
        """Returns the model of the same hardware with another number of workers.

        Only a and c_hat change. With `hops` set, a is the same for any N > 1, and doubles from one
        level to two if `workers_per_host` is set.
        """
        return replace(self, num_workers=num_workers)

    def with_link_rate(self, factor: float) -> "ProcessorModel":
        """Returns the model with links that are `factor` times as fast; CPU time stays.

        On one host without a wire, links are as fast as lanes copy, and only slower ones differ.
        """
        if not self.wire_per_byte and factor >= 1:
            return self
        return replace(self, wire_per_byte=(self.wire_per_byte or self.work_per_byte) / factor)

    def one_phase(self) -> "ProcessorModel":
        """Returns the model of a reduce-scatter or an all-gather."""
        return replace(self._on_wire(0.5, 0.0), startup=self.startup / 2)

    def _on_wire(self, share: float, rounding: float) -> "ProcessorModel":
        return replace(
            self,
            work_per_byte=share * self.work_per_byte + rounding,
            wire_per_byte=share * self.wire_per_byte,
        )

    def contention_free(self) -> ContentionModel:
        """Returns the ideal in which lanes take no time from computation."""
        rate = 1 / max(self.wire_per_byte, self.work_per_byte)
        return ContentionModel(
            self.num_workers,
            self.startup / 2,
            (1.0, 0.0),
            (rate, 0.0, 0.0),
            (rate, 0.0, 0.0),
            hops=self.hops,
            workers_per_host=self.workers_per_host,
            waiting=self.waiting,
        )

    def formula(self) -> str:
        """Format the parameters in words."""
        wire = f" and {self.wire_per_byte * 1e9:.2f} (1 + {self.lane_gap:.2f}/r) ns on the wire"
        return (
            f"a byte takes {self.work_per_byte * 1e9:.2f} ns of the cores"
            f"{wire if self.wire_per_byte else ''}; during computation r lanes get at most"
            f" s/(1 + s) of the cores, s = {self.lane_weight:.2f} sqrt(r);"
            f" a = {formatting.time(self.startup_seconds)}"
            f"{self._waiting_text()}"
        )

    def _seconds_per_byte(self, num_threads: ArrayLike) -> tuple[_Array, _Array]:
        threads = np.asarray(num_threads, np.float64)
        if not np.all(threads > 0):
            raise ValueError(f"num_threads must be positive, got {num_threads!r}")
        return seconds_per_byte(
            self.work_per_byte, self.wire_per_byte, self.lane_weight, self.lane_gap, threads
        )


def seconds_per_byte(
    work: float | _Array,
    wire: float | _Array,
    weight: float | _Array,
    gap: float | _Array,
    threads: NDArray[np.float64 | np.int64],
) -> tuple[_Array, _Array]:
    """Returns the seconds per byte overlapped, p, and exclusive, q, of `ProcessorModel`.

    Args:
      work: u, of one model or, as an array, of several; all arguments broadcast.
      wire: w.
      weight: h.
      gap: e.
      threads: r.
    """
    on_wire = wire * (1 + gap / threads)
    lanes = weight * np.sqrt(threads)
    on_cores = work * (1 + lanes) / lanes
    return np.hypot(on_wire, on_cores), np.maximum(on_wire, work)
