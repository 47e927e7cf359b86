"""Families of cost models between which a fit chooses: one as a model, many as their costs alone.

A fit looks at thousands of candidates. To construct a checked model of each, and to ask it, takes
many times as long as to compute what all of them cost as arrays.
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
    """Costs of all-reduces by each of many models, of shape [models, ...].

    Attributes:
      overlapped: p(c, r) + a, or 0 for 0 bytes.
      exclusive: q(c, r) + a, or 0 for 0 bytes.
      rates: the share of its speed that computation keeps while it overlaps with them.
    """

    overlapped: _Array
    exclusive: _Array
    rates: _Array


class Family(Protocol):
    """Models that differ in some parameters."""

    def model(self, parameters: Sequence[float]) -> CostModel:
        """The model of these parameters."""

    def costs(self, parameters: _Array, num_bytes: _Integers, threads: _Integers) -> FamilyCosts:
        """Returns the costs of the same all-reduces by many models.

        Args:
          parameters: of shape [models, parameters].
          num_bytes: of each all-reduce, of any shape.
          threads: of each all-reduce, of the same shape.

        Raises:
          ValueError: by what all models have in common, computation would not go on concurrently
            with so many threads. The parameters that differ are not checked.
        """


@dataclass(frozen=True)
class CpuShareFamily:
    """Processor models by the startup overhead that is measured, u, w, h and e.

    Attributes:
      num_workers: see `ProcessorModel`.
      hops: see `ProcessorModel`.
      workers_per_host: see `ProcessorModel`.
    """

    num_workers: int
    hops: int | None = 2
    workers_per_host: int | None = None

    def model(self, parameters: Sequence[float]) -> ProcessorModel:
        """The model whose all-reduces start in the first of the parameters, whatever its hops."""
        startup, work, wire, weight, gap = parameters
        two_hops = 2 * startup / num_hops(self.num_workers, self.hops, self.workers_per_host)
        return ProcessorModel(
            self.num_workers, two_hops, work, wire, weight, gap, self.hops, self.workers_per_host
        )

    def costs(self, parameters: _Array, num_bytes: _Integers, threads: _Integers) -> FamilyCosts:
        """See `Family`; raises no error, and a rate that rounding leaves nothing of is 0."""
        by_model = parameters.T.reshape(-1, len(parameters), *(1,) * num_bytes.ndim)
        startup, work, wire, weight, gap = by_model
        overlapped, exclusive = seconds_per_byte(work, wire, weight, gap, threads)
        transmitted = 2 * (self.num_workers - 1) / self.num_workers * num_bytes
        launched = startup * (num_bytes > 0)
        return FamilyCosts(
            launched + transmitted * overlapped,
            launched + transmitted * exclusive,
            1 - work / overlapped,
        )


@dataclass(frozen=True)
class ScaledContentionFamily:
    """A model where all-reduces wait and send as many times as long (`ContentionModel.slowed`).

    Attributes:
      by: the model of all-reduces that wait for no other rank.
    """

    by: ContentionModel

    def model(self, parameters: Sequence[float]) -> ContentionModel:
        """The model of seconds of waiting, and of how many times as long a byte takes."""
        waiting, transmission = parameters
        return self.by.slowed(waiting, transmission)

    def costs(self, parameters: _Array, num_bytes: _Integers, threads: _Integers) -> FamilyCosts:
        """See `Family`: `by` says at how many threads."""
        waiting, transmission = parameters.T.reshape(2, -1, *(1,) * num_bytes.ndim)
        model, launched = self.by, num_bytes > 0
        rates = model.compute_rate(threads)
        return FamilyCosts(
            (model.startup_seconds + waiting) * launched
            + transmission * model.overlapped_seconds(num_bytes, threads),
            (model.exclusive_startup_seconds + waiting) * launched
            + transmission * model.exclusive_seconds(num_bytes, threads),
            np.broadcast_to(rates, (len(parameters), *rates.shape)),
        )
