"""Predictions of steps under other strategies, which decide which of them are tried.

What data parallelism has measured bounds how fast they may be. Those that may win are predicted
from layers that are measured once, on the scale of the measured steps of data parallelism.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tf_libra.autotune import TuningResult
from tf_libra.cost_model import CostModel
from tf_libra.internal import formatting
from tf_libra.planning.family_comparison import FamilyComparison, FamilyRow
from tf_libra.planning.one_worker import (
    CLEARLY_SLOWER,
    OneWorkerComparison,
    one_worker_seconds,
)
from tf_libra.runtime.family_options import describe_error
from tf_libra.runtime.family_trials import FIRST
from tf_libra.runtime.strategy_kinds import Links, StrategyKind, resolve_strategy
from tf_libra.specs.layer_graph import LayerGraph

PREDICTION_ERROR = 1.15
"""Ratio of a predicted step to that of data parallelism or one rank from which on it is not tried.

Both are known: the one is measured, and the other is the sum of measured layers."""
STAGES_ERROR = 1.75
"""The same for the ratio to a pipeline or burst, which may take far longer than predicted."""
CALLS_SECONDS = 2e-3
"""Least seconds that a step takes more if Python calls its stages and other ranks wait for them."""
MEASURED_SECONDS = 10.0
"""Seconds that the measurement of layers may take; steps that need more are not predicted."""
MOST_LINK_ROUNDS = 16
"""Most rounds in which links between hosts are measured, each between disjoint pairs of them."""
_MOST_REPEATS = 3
# Steps of one worker that one repetition of all layers takes: apart, together, and for one share,
# each after a first run that does not count.
_STEPS_PER_REPEAT = 2.5
# Steps of one worker that measuring for a plan takes before turns begin, and seconds of a round
# that measures links, or of all-reduces among one number of ranks.
_STEPS_PER_PLAN, _SECONDS_PER_ROUND = 12, 0.8
# One of the three matrix products of a layer is in forward computation.
_FORWARD_TO_BACKWARD = 0.5
# Largest correction of measured layers to the speed of steps in training.
_MAX_CORRECTION = 2.0


def links_of(cost: CostModel, num_threads: int) -> Links:
    """Returns the links of a cost model, with their rate at a number of threads."""
    startup = cost.without_waiting().exclusive_constant_seconds
    hops = max(2 * (cost.num_workers - 1), 1)
    rate = float(cost.exclusive_rate(num_threads))
    return Links(cost.num_workers, rate, startup, startup / hops)


@dataclass(frozen=True)
class Reference:
    """Data parallelism, which other strategies are predicted against.

    Attributes:
        compared: its step, and that of one worker.
        compute_seconds: computation of its step on one rank.
        links: links between the ranks.
        num_threads: communication threads at which links have their rate.
        is_current: whether its computation has been measured since step times have changed.
        is_whole: whether all of its step has been measured; else `compared` lacks what a step takes
            outside of forward and backward computation, and bounds nothing.
    """

    compared: OneWorkerComparison
    compute_seconds: float
    links: Links
    num_threads: int = 1
    is_current: bool = True
    is_whole: bool = True

    @classmethod
    def from_result(
        cls,
        result: TuningResult | None,
        everyone: Sequence[Sequence[float]],
        is_repeated: bool = False,
        is_current: bool = True,
    ) -> "Reference | None":
        """Returns the reference that tuning has measured; None if it has not.

        Args:
            result: result of tuning.
            everyone: by rank, seconds of steps under its plan, which count if trials timed none.
            is_repeated: whether they count in any case, since step times have changed.
            is_current: whether tuning has measured the step since then.
        """
        if result is None or result.profile is None or result.cost_model is None:
            return None
        profile, cost, rest = result.profile, result.cost_model, result.rest_seconds
        is_whole = rest is not None
        if rest is None:  # tuning ended early
            rest = _FORWARD_TO_BACKWARD * float(profile.compute_after[0])
        compared = result.compare_with_one_worker()
        step = max(map(statistics.median, everyone)) if all(everyone) else None
        if compared is None:
            if step is None:
                return None
            alone = one_worker_seconds(profile, rest, cost.num_workers)
            evidence = "bound" if is_whole else "predicted"
            compared = OneWorkerComparison(cost.num_workers, step, alone, evidence=evidence)
        elif is_repeated and step is not None:
            compared = replace(compared, step_seconds=step)
        threads = max(group.num_threads for group in result.plan.groups)
        seconds = one_worker_seconds(profile, rest, 1)
        return cls(compared, seconds, links_of(cost, threads), threads, is_current, is_whole)

    def describe_bound(self, kind: StrategyKind) -> str:
        """Returns why a kind of strategies cannot be faster, in a clause; empty if it may."""
        alone, step = self.compared.one_worker_seconds, self.compared.step_seconds
        least = alone / kind.max_speedup(self.links.num_ranks) + CALLS_SECONDS
        if CLEARLY_SLOWER * least <= step:
            return ""
        return (
            f"its step takes {formatting.time(least)} at least, and one of {FIRST}"
            f" {formatting.time(step)}"
        )

    @property
    def num_repeats(self) -> int:
        """Number of repetitions in which layers are measured; below 1 if one takes too long."""
        seconds = _STEPS_PER_REPEAT * self.compared.one_worker_seconds
        return min(int(MEASURED_SECONDS / seconds) - 1, _MOST_REPEATS)

    def describe_late(self, seconds_left: float, num_plans: int) -> str:
        """Returns why there is no time to measure for plans, in a clause; empty if there is.

        Args:
            seconds_left: seconds in which trials may go on.
            num_plans: number of plans, which share the measurement of links.
        """
        num_ranks = self.links.num_ranks
        num_rounds = min(num_ranks, MOST_LINK_ROUNDS) + num_ranks.bit_length()
        seconds = num_plans * _STEPS_PER_PLAN * self.compared.one_worker_seconds
        seconds += num_rounds * _SECONDS_PER_ROUND
        if seconds <= seconds_left:
            return ""
        return (
            f"measurements for its plan would take {formatting.time(seconds)}, and trials have"
            f" {formatting.time(max(seconds_left, 0.0))} left"
        )


def correct_speed(reference: Reference, layers: LayerGraph) -> LayerGraph:
    """Returns layers on the scale of steps in training, at most twice as fast or slow.

    After step times have changed, they are as measured: steps in training had another speed.

    Args:
        reference: data parallelism in training.
        layers: layers as measured for the joint batch and for one rank's share.
    """
    if not reference.is_current:
        return layers
    of_share = _step_seconds(layers, reference.links.num_ranks)
    correction = reference.compute_seconds / max(of_share, 1e-9)
    return layers.with_speed(min(max(correction, 1 / _MAX_CORRECTION), _MAX_CORRECTION))


def _step_seconds(layers: LayerGraph, num_ranks: int) -> float:
    """Returns the computation of one rank's share of the joint batch, with the update."""
    forward, backward = layers.without_deferred().replica_seconds(num_ranks)
    return float((forward + backward + layers.update_seconds).sum())


def measure_layers(
    reference: Reference, measure: Callable[[], tuple[LayerGraph, int]]
) -> tuple[LayerGraph | None, int, str]:
    """Returns layers at the speed of training, their batch, and why there are none, in a clause.

    Args:
        reference: data parallelism in training.
        measure: measures the layers, and returns them with the batch; reaches no other rank.
    """
    if reference.num_repeats < 1:
        seconds = formatting.time(reference.compared.one_worker_seconds)
        return None, 0, f"a step of one worker takes {seconds}, too long to measure its layers"
    try:
        layers, batch = measure()
        return correct_speed(reference, layers), batch, ""
    except Exception as error:  # of the script, or of a layer that does not run by itself
        return None, 0, f"its layers cannot be measured: {describe_error(error)}"


class FamilyPrediction(NamedTuple):
    """Predicted step of a family.

    Attributes:
        seconds: seconds of the step; 0 if there are none.
        problem: why there are none, in a clause; empty if there are.
        arguments: arguments that its strategy leaves open, with the values for this step.
    """

    seconds: float
    problem: str = ""
    arguments: Mapping[str, Any] = {}


def predict_families(
    layers: LayerGraph, links: Links, batch: int, families: Mapping[str, tuple[StrategyKind, Any]]
) -> dict[str, FamilyPrediction]:
    """Returns the predicted step by family.

    Args:
        layers: layers for the joint batch, on the scale of steps in training.
        links: links between the ranks.
        batch: number of examples of the joint batch.
        families: kind and strategy by name; those that nothing predicts are left out.
    """
    found: dict[str, FamilyPrediction] = {}
    for name, (kind, strategy) in families.items():
        if kind.trains_alone:
            sizes = layers.input_bytes, layers.output_bytes
            transfers = sum(links.transfer_seconds(size, 1) for size in sizes)
            found[name] = FamilyPrediction(_step_seconds(layers, num_ranks=1) + transfers)
        elif kind.predict is not None:
            try:
                seconds, arguments = kind.predict(strategy, layers, links, batch)
                found[name] = FamilyPrediction(seconds, arguments=arguments)
            except ValueError as error:  # there is no plan
                found[name] = FamilyPrediction(0.0, str(error))
    return found


def describe_arguments(arguments: Mapping[str, Any]) -> str:
    """Returns arguments of a strategy for readers."""
    return ", ".join(f"{name}={value}" for name, value in arguments.items())


def describe_slow(seconds: Mapping[str, float], step_seconds: float, alone: str) -> dict[str, str]:
    """Returns why pipelines and bursts are not worth a trial, in a clause, by name.

    Args:
        seconds: predicted steps of all strategies but data parallelism.
        step_seconds: measured step of data parallelism.
        alone: name of the strategy that trains the joint batch on one rank, which has a check of
            its own.
    """
    every = {FIRST: step_seconds, **seconds}
    most = {
        name: taken * (PREDICTION_ERROR if name in (FIRST, alone) else STAGES_ERROR)
        for name, taken in every.items()
    }
    fastest = min(most, key=lambda name: most[name])
    return {
        name: (
            f"its step is predicted to take {formatting.time(taken)}, and one of {fastest}"
            f" {formatting.time(every[fastest])}"
        )
        for name, taken in seconds.items()
        if name != alone and taken > most[fastest]
    }


def predict_elsewhere(
    measured: FamilyComparison,
    cost: CostModel,
    batch_factor: float,
    step_seconds: float,
    alone_seconds: float,
) -> FamilyComparison:
    """Returns the families as predicted for other links, batches or workers than measured ones.

    Args:
        measured: the families as measured.
        cost: cost model of the other cluster.
        batch_factor: factor on the examples of each worker.
        step_seconds: predicted step of data parallelism there.
        alone_seconds: largest step of one worker there, which counts without measured layers.
    """
    num_workers = cost.num_workers
    factor = batch_factor * num_workers / measured.num_workers
    batch, layers = max(round(factor * measured.batch), 1), None
    found: dict[str, FamilyPrediction] = {}
    unknown = FamilyPrediction(0.0, "its layers were not measured in training")
    others = [row for row in measured.rows if row.name != FIRST]
    possible = {row.name: row for row in others if row.is_slow or not row.left_out}
    kinds = {name: resolve_strategy(name) for name in possible}
    if measured.layers is not None:
        layers = measured.layers.with_batch(factor, num_workers)
        links = links_of(cost, measured.num_threads)
        found = predict_families(layers, links, batch, kinds)
    rows = [FamilyRow(FIRST, step_seconds)]
    for row in others:
        each = found.get(row.name, unknown)
        if row.name not in possible:
            rows.append(FamilyRow(row.name, left_out=row.left_out))
        elif not each.problem:
            arguments = describe_arguments(each.arguments)
            rows.append(FamilyRow(row.name, each.seconds, arguments=arguments))
        elif kinds[row.name][0].trains_alone:
            rows.append(FamilyRow(row.name, alone_seconds, is_bound=True))
        else:
            rows.append(FamilyRow(row.name, left_out=each.problem))
    alone = next((row for row in rows[1:] if _trains_alone(row.name) and not row.left_out), None)
    is_known = alone is not None and not alone.is_bound
    compared = OneWorkerComparison(
        num_workers,
        min(row.seconds for row in rows if row is not alone),
        alone.seconds if alone is not None else alone_seconds,
        evidence="predicted" if is_known else "bound",
    )
    return FamilyComparison(
        num_workers,
        tuple(rows),
        min(rows, key=lambda row: row.seconds).name,
        compared,
        measured.num_threads,
        batch if layers is not None else 0,
        layers,
    )


def _trains_alone(name: str) -> bool:
    kind, _ = resolve_strategy(name)
    return kind.trains_alone
