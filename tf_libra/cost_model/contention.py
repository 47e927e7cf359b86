"""LIBRA's contention model (section III-A): formulas g, p, q and the startup overhead a."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_libra.cost_model.base import CostModel, num_hops
from tf_libra.internal import formatting, validation
from tf_libra.internal.values import Check, Int32Count, NonNegative, Positive


def _rate_parameters(*names: str) -> Check:
    """Returns the check of a formula's parameters: the first positive, the others at least 0."""

    def check(field: str, value: Any) -> tuple[float, ...]:
        values = validation.sequence(field, value)
        if len(values) != len(names):
            raise ValueError(f"{field} must be ({', '.join(names)}), got {values!r}")
        first = validation.real(f"{field}: {names[0]}", values[0], above=0)
        rest = (
            validation.real(f"{field}: {name}", parameter, minimum=0)
            for name, parameter in zip(names[1:], values[1:], strict=True)
        )
        return (first, *rest)

    return check


_GAMMAS = _rate_parameters("gamma1", "gamma2", "gamma3")


@dataclass(frozen=True)
class ContentionModel(CostModel):
    """LIBRA's contention model: computation loses the threads that communicate.

    Attributes:
      num_workers: N.
      hop_latency: alpha, seconds; the startup overhead is a = hops·alpha.
      compute: (alpha1, alpha2) of Eq. 5.
      overlapped: (gamma1, gamma2, gamma3) of Eq. 6 for p; gamma1 and gamma2 in bytes per second.
      exclusive: parameters of q, the same form, for all-reduces that no computation overlaps.
      exponent: gamma4 of Eq. 6.
      exclusive_hop_latency: alpha of all-reduces that no computation overlaps, if it differs (a
        busy processor may be slower to start one); None: `hop_latency`.
      hops: sequential hops of an all-reduce. None: 2(N-1), as in a ring all-reduce (Eq. 4). Lanes
        exchange with all ranks of a level concurrently: 2 hops for any N.
      workers_per_host: ranks per host. If N ranks fill several such hosts, an all-reduce has two
        levels, within and across hosts, and twice `hops`. With one rank per host it has two levels
        if the hosts form a grid (`hops.row_of_square`). None: it has one level.
      rounding_per_byte: see `CostModel`.
      waiting: mean seconds that an all-reduce waits for ranks and cores.

    Raises:
      ValueError: a parameter is not finite or lies outside its range.
    """

    num_workers: Int32Count
    hop_latency: NonNegative
    compute: Annotated[tuple[float, float], _rate_parameters("alpha1", "alpha2")]
    overlapped: Annotated[tuple[float, float, float], _GAMMAS]
    exclusive: Annotated[tuple[float, float, float], _GAMMAS]
    exponent: Positive = 0.6
    exclusive_hop_latency: NonNegative | None = None
    hops: Int32Count | None = None
    workers_per_host: Int32Count | None = None
    rounding_per_byte: NonNegative = 0.0
    waiting: NonNegative = 0.0

    FORMAT: ClassVar = "tf-libra cost model"
    SPARSE: ClassVar = ("hops", "workers_per_host", "rounding_per_byte", "waiting")

    @property
    def num_hops(self) -> int:
        """Sequential hops of an all-reduce among N workers; 0 for one worker."""
        return num_hops(self.num_workers, self.hops, self.workers_per_host)

    @property
    def startup_seconds(self) -> float:
        """Startup overhead a of an all-reduce that computation overlaps (Eq. 4)."""
        return self.num_hops * self.hop_latency

    @property
    def exclusive_startup_seconds(self) -> float:
        """Startup overhead a of an all-reduce that no computation overlaps."""
        if self.exclusive_hop_latency is None:
            return self.startup_seconds
        return self.num_hops * self.exclusive_hop_latency

    def compute_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """Share of its speed that overlapped computation keeps: alpha1 - alpha2·r (Eq. 5)."""
        alpha1, alpha2 = self.compute
        rate = alpha1 - alpha2 * np.asarray(num_threads, np.float64)
        return _positive("compute: alpha1 - alpha2*r", rate, num_threads)

    def overlapped_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """Denominator of p in bytes per second (Eq. 6)."""
        return self._rate("overlapped", self.overlapped, num_threads)

    def exclusive_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        """Denominator of q in bytes per second (Eq. 6)."""
        return self._rate("exclusive", self.exclusive, num_threads)

    def with_workers(self, num_workers: int) -> "ContentionModel":
        """Returns the model of the same hardware with another number of workers.

        Only a and c_hat change (Eq. 4). With `hops` set, a is the same for any N > 1, and doubles
        from one level to two if `workers_per_host` is set.
        """
        return replace(self, num_workers=num_workers)

    def slowed(self, waiting: float, transmission: float) -> "ContentionModel":
        """Returns the model with slower all-reduces, overlapped or not.

        Assumptions 2 and 3 hold for the result if they hold for this model.

        Args:
          waiting: seconds added to the waiting of every all-reduce.
          transmission: factor on every transmission time.
        """

        def slower(gammas: tuple[float, float, float]) -> tuple[float, float, float]:
            return gammas[0] / transmission, gammas[1] / transmission, gammas[2]

        return replace(
            self,
            waiting=self.waiting + waiting,
            overlapped=slower(self.overlapped),
            exclusive=slower(self.exclusive),
        )

    def with_link_rate(self, factor: float) -> "ContentionModel":
        """Returns the model with links that are `factor` times as fast; startup stays."""
        return self.slowed(0.0, 1 / factor)

    def one_phase(self) -> "ContentionModel":
        """Returns the model of a reduce-scatter or an all-gather."""
        alone = self.exclusive_hop_latency
        return replace(
            self.slowed(0.0, 0.5),
            hop_latency=self.hop_latency / 2,
            exclusive_hop_latency=None if alone is None else alone / 2,
        )

    def _on_wire(self, share: float, rounding: float) -> "ContentionModel":
        # Rounding delays an all-reduce relative to its rate on unlimited threads.
        return self.slowed(0.0, share + rounding * self.exclusive[0])

    def contention_free(self) -> "ContentionModel":
        """Returns the ideal without contention, MG-CF in LIBRA: compute = (1, 0) and p = q."""
        alone = self.exclusive_hop_latency
        return replace(
            self,
            compute=(1.0, 0.0),
            overlapped=self.exclusive,
            hop_latency=self.hop_latency if alone is None else alone,
            exclusive_hop_latency=None,
        )

    def formula(self) -> str:
        """Format g and a with their parameters (Eqs. 4 and 5)."""
        alpha1, alpha2 = self.compute
        return (
            f"g(b, r) = b / ({alpha1:.3f} - {alpha2:.3f} r),"
            f" a = {formatting.time(self.startup_seconds)} overlapped,"
            f" {formatting.time(self.exclusive_startup_seconds)} alone{self._waiting_text()}"
        )

    def _rate(
        self, field: str, gammas: tuple[float, float, float], num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        gamma1, gamma2, gamma3 = gammas
        threads = np.asarray(num_threads, np.float64)
        rate = gamma1 - gamma2 * np.exp(-gamma3 * threads**self.exponent)
        return _positive(f"{field}: gamma1 - gamma2*exp(-gamma3*r**exponent)", rate, num_threads)


def _positive(
    formula: str, rate: NDArray[np.float64], num_threads: ArrayLike
) -> NDArray[np.float64]:
    if not (rate > 0).all():
        threads = np.broadcast_to(np.asarray(num_threads), rate.shape)[~(rate > 0)].flat[0]
        raise ValueError(f"{formula} must be positive at r = {threads}, got {rate.min():.6g}")
    return rate
