"""Parametric families of cost models: a single model, or the costs of many models as arrays.

A fit evaluates thousands of parameter vectors. Computing their costs as arrays is many times faster
than constructing and validating a model for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model import ContentionModel, CostModel, ProcessorModel
from tf_libra.cost_model.base import num_hops
from tf_libra.cost_model.cpu_share import seconds_per_byte

_Array = NDArray[np.float64]
_Integers = NDArray[np.int64]


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


class Family(Protocol):
    """Family of models with a few free parameters."""

    def model(self, parameters: Sequence[float]) -> CostModel:
        """Returns the model with these parameters."""

    def costs(self, parameters: _Array, num_bytes: _Integers, threads: _Integers) -> FamilyCosts:
        """Returns the costs of the same all-reduces under many models.

        Args:
          parameters: shape [models, parameters].
          num_bytes: bytes of each all-reduce, any shape.
          threads: threads of each all-reduce, same shape.

        Raises:
          ValueError: the fixed parameters leave no computation next to these threads. The free
            parameters are not checked.
        """


@dataclass(frozen=True)
class CpuShareFamily:
    """CPU-share models with free startup overhead, u, w, h, e and waiting.

    Attributes:
      num_workers: see `ProcessorModel`.
      hops: see `ProcessorModel`.
      workers_per_host: see `ProcessorModel`.
    """

    num_workers: int
    hops: int | None = 2
    workers_per_host: int | None = None

    def model(self, parameters: Sequence[float]) -> ProcessorModel:
        """Returns the model whose startup overhead is the first parameter, whatever its hops."""
        startup, work, wire, weight, gap, waiting = parameters
        two_hops = 2 * startup / num_hops(self.num_workers, self.hops, self.workers_per_host)
        return ProcessorModel(
            self.num_workers,
            two_hops,
            work,
            wire,
            weight,
            gap,
            self.hops,
            self.workers_per_host,
            waiting=waiting,
        )

    def costs(self, parameters: _Array, num_bytes: _Integers, threads: _Integers) -> FamilyCosts:
        """Returns the costs as `Family` says; raises no error, and a rate may round to 0."""
        by_model = parameters.T.reshape(-1, len(parameters), *(1,) * num_bytes.ndim)
        startup, work, wire, weight, gap, waiting = by_model
        overlapped, exclusive = seconds_per_byte(work, wire, weight, gap, threads)
        transmitted = 2 * (self.num_workers - 1) / self.num_workers * num_bytes
        launched = num_bytes > 0
        return FamilyCosts(
            startup * launched + transmitted * overlapped,
            startup * launched + transmitted * exclusive,
            1 - work / overlapped,
            waiting * launched,
        )


@dataclass(frozen=True)
class ScaledContentionFamily:
    """Contention model with a free waiting time and transmission factor (`ContentionModel.slowed`).

    Attributes:
      base: model of all-reduces that wait for no other rank.
    """

    base: ContentionModel

    def model(self, parameters: Sequence[float]) -> ContentionModel:
        """Returns the model with these waiting seconds and this factor on transmissions."""
        waiting, transmission = parameters
        return self.base.slowed(waiting, transmission)

    def costs(self, parameters: _Array, num_bytes: _Integers, threads: _Integers) -> FamilyCosts:
        """Returns the costs as `Family` says; `base` checks the threads."""
        waiting, transmission = parameters.T.reshape(2, -1, *(1,) * num_bytes.ndim)
        model, launched = self.base, num_bytes > 0
        rates = model.compute_rate(threads)
        return FamilyCosts(
            model.startup_seconds * launched
            + transmission * model.overlapped_seconds(num_bytes, threads),
            model.exclusive_startup_seconds * launched
            + transmission * model.exclusive_seconds(num_bytes, threads),
            np.broadcast_to(rates, (len(parameters), *rates.shape)),
            (model.waiting + waiting) * launched,
        )
