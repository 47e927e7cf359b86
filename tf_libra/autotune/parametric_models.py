"""Parametric family of CPU-share models: a single model, or the costs of many models as arrays.

A fit evaluates thousands of parameter vectors. Computing their costs as arrays is many times faster
than constructing and validating a model for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model import ProcessorModel
from tf_libra.cost_model.base import num_hops
from tf_libra.cost_model.cpu_share import seconds_per_byte

_Array = NDArray[np.float64]
_Integers = NDArray[np.int64]

_LEAST_WORK = 1e-12  # seconds per byte


@dataclass(frozen=True, eq=False)
class FamilyCosts:
    """Costs of all-reduces under many models, of shape [models, ...].

    Attributes:
      overlapped: p(c, r) + a without waiting, or 0 for 0 bytes.
      exclusive: q(c, r) + a without waiting, or 0 for 0 bytes.
      rates: relative speed of computation that overlaps with the all-reduce, after waiting.
      waiting: seconds that each all-reduce waits, or 0 for 0 bytes.
    """

    overlapped: _Array
    exclusive: _Array
    rates: _Array
    waiting: _Array

    @property
    def mean_rates(self) -> _Array:
        """Relative speed of computation during the whole all-reduce, waiting included."""
        seconds = self.waiting + self.overlapped
        waited = np.divide(self.waiting, seconds, out=np.zeros_like(seconds), where=seconds > 0)
        return waited + (1 - waited) * self.rates


@dataclass(frozen=True)
class CpuShareFamily:
    """CPU-share models with free startup overhead, seconds per byte, e and waiting.

    Whole steps do not tell core time from transmission, nor either of them from an unfair
    scheduler. Therefore one of them is known, and the scheduler is taken to be fair.

    Attributes:
      num_workers: see `ProcessorModel`.
      core_seconds: measured core seconds of a worker's lanes per byte of c_hat, so that w is free.
        None: there is no wire, as in shared memory, so that u is free.
      cores: number of cores of a worker.
      hops: see `ProcessorModel`.
      workers_per_host: see `ProcessorModel`.
    """

    num_workers: int
    core_seconds: float | None = None
    cores: int = 1
    hops: int | None = 2
    workers_per_host: int | None = None

    @property
    def least_per_byte(self) -> float:
        """Least seconds per byte that make a difference: those of the lanes' core time."""
        return max((self.core_seconds or 0.0) / self.cores, _LEAST_WORK)

    @property
    def weight(self) -> float:
        """Weight h of a lane if the scheduler is fair to it and to a computing thread per core."""
        return 1 / self.cores

    def model(self, parameters: Sequence[float]) -> ProcessorModel:
        """Returns the model whose startup overhead is the first parameter, whatever its hops."""
        startup, per_byte, gap, waiting = parameters
        two_hops = 2 * startup / num_hops(self.num_workers, self.hops, self.workers_per_host)
        work, wire = self._work_and_wire(per_byte)
        return ProcessorModel(
            self.num_workers,
            two_hops,
            work,
            wire,
            self.weight,
            gap if wire else 0.0,
            self.hops,
            self.workers_per_host,
            waiting=waiting,
        )

    def costs(self, parameters: _Array, num_bytes: _Integers, threads: _Integers) -> FamilyCosts:
        """Returns the costs of the same all-reduces under many models.

        Args:
          parameters: shape [models, parameters].
          num_bytes: bytes of each all-reduce, any shape.
          threads: threads of each all-reduce, same shape.
        """
        startup, per_byte, gap, waiting = parameters.T.reshape(4, -1, *(1,) * num_bytes.ndim)
        work, wire = self._work_and_wire(per_byte)
        overlapped, exclusive = seconds_per_byte(work, wire, self.weight, gap, threads)
        transmitted = 2 * (self.num_workers - 1) / self.num_workers * num_bytes
        launched = num_bytes > 0
        return FamilyCosts(
            startup * launched + transmitted * overlapped,
            startup * launched + transmitted * exclusive,
            1 - work / overlapped,
            waiting * launched,
        )

    def _work_and_wire(self, per_byte: Any) -> tuple[Any, Any]:
        """Returns u and w: the known one and the free one."""
        return (per_byte, 0.0) if self.core_seconds is None else (self.least_per_byte, per_byte)
