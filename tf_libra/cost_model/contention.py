"""LIBRA's contention model (section III-A): formulas g, p, q and the startup overhead a."""

import json
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_libra.cost_model.base import CostModel
from tf_libra.cost_model.hops import num_hops
from tf_libra.internal import formatting, validation

_FORMAT = "tf-libra cost model"
_VERSION = 1


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

    Raises:
      ValueError: a parameter is not finite or lies outside its range.
    """

    num_workers: int
    hop_latency: float
    compute: tuple[float, float]
    overlapped: tuple[float, float, float]
    exclusive: tuple[float, float, float]
    exponent: float = 0.6
    exclusive_hop_latency: float | None = None
    hops: int | None = None
    workers_per_host: int | None = None

    def __post_init__(self) -> None:
        workers = validation.integer("num_workers", self.num_workers, 1, validation.MAX_INT32)
        object.__setattr__(self, "num_workers", workers)
        latency = validation.real("hop_latency", self.hop_latency, minimum=0)
        object.__setattr__(self, "hop_latency", latency)
        for field, names in (
            ("compute", ("alpha1", "alpha2")),
            ("overlapped", ("gamma1", "gamma2", "gamma3")),
            ("exclusive", ("gamma1", "gamma2", "gamma3")),
        ):
            values = validation.sequence(field, getattr(self, field))
            if len(values) != len(names):
                raise ValueError(f"{field} must be ({', '.join(names)}), got {values!r}")
            first = validation.real(f"{field}: {names[0]}", values[0], above=0)
            rest = (
                validation.real(f"{field}: {name}", value, minimum=0)
                for name, value in zip(names[1:], values[1:], strict=True)
            )
            object.__setattr__(self, field, (first, *rest))
        object.__setattr__(self, "exponent", validation.real("exponent", self.exponent, above=0))
        if self.exclusive_hop_latency is not None:
            latency = validation.real(
                "exclusive_hop_latency", self.exclusive_hop_latency, minimum=0
            )
            object.__setattr__(self, "exclusive_hop_latency", latency)
        for field in ("hops", "workers_per_host"):
            object.__setattr__(self, field, validation.count(field, getattr(self, field)))

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
        """Return the model of the same hardware with another number of workers.

        Only a and c_hat change (Eq. 4). With `hops` set, a is the same for any N > 1, and doubles
        from one level to two if `workers_per_host` is set.
        """
        return replace(self, num_workers=num_workers)

    def slowed(self, waiting: float, transmission: float) -> "ContentionModel":
        """Return the model with slower all-reduces, overlapped or not.

        Assumptions 2 and 3 hold for the result if they hold for this model.

        Args:
          waiting: seconds added to every startup.
          transmission: factor on every transmission time.
        """
        alone, each = self.exclusive_hop_latency, waiting / max(self.num_hops, 1)

        def slower(gammas: tuple[float, float, float]) -> tuple[float, float, float]:
            return gammas[0] / transmission, gammas[1] / transmission, gammas[2]

        return replace(
            self,
            hop_latency=self.hop_latency + each,
            exclusive_hop_latency=None if alone is None else alone + each,
            overlapped=slower(self.overlapped),
            exclusive=slower(self.exclusive),
        )

    def contention_free(self) -> "ContentionModel":
        """Return the ideal without contention, MG-CF in LIBRA: compute = (1, 0) and p = q."""
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
            f" {formatting.time(self.exclusive_startup_seconds)} alone"
        )

    def to_json(self) -> str:
        """Return the model as JSON text, which `from_json` reads back unchanged."""
        value = {"format": _FORMAT, "version": _VERSION} | asdict(self)
        for name in ("hops", "workers_per_host"):
            if value[name] is None:
                del value[name]
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, document: str) -> "ContentionModel":
        """Read a model from JSON text; a `ValueError` names the field that is wrong."""
        value = validation.keys(
            _FORMAT,
            validation.json_document(_FORMAT, _VERSION, document),
            required=("num_workers", "hop_latency", "compute", "overlapped", "exclusive"),
            optional=("exponent", "exclusive_hop_latency", "hops", "workers_per_host"),
        )
        return cls(**value)

    def _rate(
        self, field: str, gammas: tuple[float, float, float], num_threads: ArrayLike
    ) -> NDArray[np.float64]:
        gamma1, gamma2, gamma3 = gammas
        threads = np.asarray(num_threads, np.float64)
        rate = gamma1 - gamma2 * np.exp(-gamma3 * threads**self.exponent)
        return _positive(f"{field}: gamma1 - gamma2*exp(-gamma3*r**exponent)", rate, num_threads)


@dataclass(frozen=True)
class OverlapSample:
    """One measured all-reduce of c bytes with r threads, and the concurrent computation.

    Attributes:
      num_bytes: c, at least 1.
      num_threads: r.
      compute_seconds: contention-free seconds b of backward computation done while it ran.
      overlap_seconds: wall seconds of the all-reduce while backward computation ran.
      residual_seconds: wall seconds of the all-reduce after backward computation had ended.
      step: number of the measured step.
      group: index of the tensor group in the plan.
      plan: fingerprint of the active plan; lets a caller hold out whole plans.

    Raises:
      ValueError: a number lies outside its range, the all-reduce took no time, or computation is
        given without overlap.
    """

    num_bytes: int
    num_threads: int
    compute_seconds: float
    overlap_seconds: float
    residual_seconds: float
    step: int = 0
    group: int = 0
    plan: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "num_bytes", validation.integer("num_bytes", self.num_bytes, minimum=1)
        )
        threads = validation.integer("num_threads", self.num_threads, 1, validation.MAX_INT32)
        object.__setattr__(self, "num_threads", threads)
        for field in ("compute_seconds", "overlap_seconds", "residual_seconds"):
            object.__setattr__(self, field, validation.real(field, getattr(self, field), minimum=0))
        validation.real("overlap_seconds + residual_seconds", self.wall_seconds, above=0)
        if self.compute_seconds > 0 and self.overlap_seconds == 0:
            raise ValueError(
                f"compute_seconds must be 0 where overlap_seconds is 0, got {self.compute_seconds}"
            )

    @property
    def wall_seconds(self) -> float:
        """Wall seconds of the whole all-reduce."""
        return self.overlap_seconds + self.residual_seconds


def _positive(
    formula: str, rate: NDArray[np.float64], num_threads: ArrayLike
) -> NDArray[np.float64]:
    if not (rate > 0).all():
        threads = np.broadcast_to(np.asarray(num_threads), rate.shape)[~(rate > 0)].flat[0]
        raise ValueError(f"{formula} must be positive at r = {threads}, got {rate.min():.6g}")
    return rate
