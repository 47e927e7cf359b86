"""LIBRA's gain as one parameter moves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import tf_libra
from benchmarks.paper.parameters import Parameters, Workload
from benchmarks.predicted import predicted_seconds
from tf_libra import strategies


@dataclass(frozen=True)
class Sweep:
    """LIBRA's gain as one parameter moves.

    Attributes:
      parameter: what is moved, with its unit.
      logarithmic: how to draw it.
      now: its value in the parameter set.
      values: that it takes.
      gains: network to percent by which MG-WFBP's backward exceeds LIBRA's, per value.
    """

    parameter: str
    logarithmic: bool
    now: float
    values: tuple[float, ...]
    gains: dict[str, tuple[float, ...]]


def sensitivity(parameters: Parameters, points: int = 8) -> list[Sweep]:
    """Varies contention and network, and returns LIBRA's gain over MG-WFBP.

    Each parameter is moved alone, for all networks by the same factor; `now` is the first network's
    value.
    """
    first = parameters.workloads[0].cost

    def geometric(low: float, high: float) -> tuple[float, ...]:
        return tuple(low * (high / low) ** (i / (points - 1)) for i in range(points))

    def linear(low: float, high: float) -> tuple[float, ...]:
        return tuple(low + (high - low) * i / (points - 1) for i in range(points))

    def contended(cost: tf_libra.ContentionModel, factor: float) -> tf_libra.ContentionModel:
        alpha1, alpha2 = cost.compute
        return replace(cost, compute=(alpha1, alpha2 * factor))

    def with_rate(
        cost: tf_libra.ContentionModel, overlapped: float, exclusive: float
    ) -> tf_libra.ContentionModel:
        (p1, p2, p3), (q1, q2, q3) = cost.overlapped, cost.exclusive
        return replace(
            cost,
            overlapped=(p1 * overlapped, p2 * overlapped, p3),
            exclusive=(q1 * exclusive, q2 * exclusive, q3),
        )

    def gains(change: Callable[[Workload, float], Workload], values: Sequence[float]) -> dict:
        return {
            workload.name: tuple(_gain(parameters, change(workload, value)) for value in values)
            for workload in parameters.workloads
        }

    def cost_gains(
        change: Callable[[tf_libra.ContentionModel, float], tf_libra.ContentionModel],
        values: Sequence[float],
    ) -> dict:
        return gains(lambda w, value: replace(w, cost=change(w.cost, value)), values)

    def slowed(workload: Workload, factor: float) -> Workload:
        profile = tf_libra.BackwardProfile.from_arrays(
            workload.profile.num_bytes,
            workload.profile.compute_seconds * factor,
            workload.profile.names,
        )
        return replace(workload, profile=profile)

    alpha1, alpha2 = first.compute
    largest = max(parameters.threads)
    slowest = 0.9 * alpha1 / (alpha2 * largest) if alpha2 > 0 else 1.0
    contention = linear(0.0, min(1.5, slowest))
    speeds, latencies = geometric(1 / 8, 8), geometric(1 / 16, 16)
    penalties, amounts = linear(1.0, 2.0), geometric(1 / 8, 8)
    return [
        Sweep(
            "alpha2, over its value",
            False,
            1.0,
            contention,
            cost_gains(contended, contention),
        ),
        Sweep(
            "p/q, over its value",
            False,
            1.0,
            penalties,
            cost_gains(lambda cost, k: with_rate(cost, 1 / k, 1), penalties),
        ),
        Sweep(
            "bandwidth, Gb/s",
            True,
            8e-9 * first.exclusive[0],
            tuple(8e-9 * first.exclusive[0] * k for k in speeds),
            cost_gains(lambda cost, k: with_rate(cost, k, k), speeds),
        ),
        Sweep(
            "latency of a hop, us",
            True,
            1e6 * first.hop_latency,
            tuple(1e6 * first.hop_latency * k for k in latencies),
            cost_gains(lambda cost, k: replace(cost, hop_latency=cost.hop_latency * k), latencies),
        ),
        Sweep("computation, over its value", True, 1.0, amounts, gains(slowed, amounts)),
        _library_sweep(parameters),
    ]


def _library_sweep(parameters: Parameters) -> Sweep:
    gains = {}
    for workload in parameters.workloads:
        best = _seconds(workload, parameters.strategies()["LIBRA"])
        gains[workload.name] = tuple(
            100 * (_seconds(workload, strategies.MgWfbp(num_threads=r)) / best - 1)
            for r in parameters.threads
        )
    return Sweep(
        "threads that the library takes",
        True,
        parameters.library_threads,
        parameters.threads,
        gains,
    )


def _gain(parameters: Parameters, workload: Workload) -> float:
    kinds = parameters.strategies()
    return 100 * (_seconds(workload, kinds["MG-WFBP"]) / _seconds(workload, kinds["LIBRA"]) - 1)


def _seconds(workload: Workload, strategy: strategies.Strategy) -> float:
    return predicted_seconds(tf_libra.make_plan(workload.profile, workload.cost, strategy))
