"""Predicted steps of the strategies that may replace data parallelism, the same on all ranks."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tf_libra.autotune import TuningResult
from tf_libra.runtime.family_prediction import (
    FamilyPrediction,
    Reference,
    measure_layers,
    predict_families,
)
from tf_libra.runtime.family_trials import FIRST, HOPELESS, LEAST_STEPS, contradicts_links
from tf_libra.runtime.protocol import CandidateStep
from tf_libra.runtime.strategy_kinds import StrategyKind
from tf_libra.runtime.training_step import TrainingFunction
from tf_libra.specs.layer_graph import LayerGraph


class FamilyForecast:
    """Predictions of one training function in one job.

    Attributes:
        predicted: predicted seconds of steps, by name.
        bounds: names of strategies that take at most as long as predicted.
        reference: data parallelism as measured; None before, or if it was not.
        layers: measured layers for the joint batch; None without.
        batch: examples of that batch.
        usual_seconds: seconds of a step of data parallelism; infinite before one is compared.
        largest_speedup: predicted bound of its speedup over one worker; infinite without one.
    """

    def __init__(
        self,
        first: TrainingFunction,
        steps: Mapping[str, CandidateStep],
        kinds: Mapping[str, tuple[StrategyKind, Any]],
    ) -> None:
        """Predicts nothing yet.

        Args:
            first: the step under data parallelism.
            steps: steps of the strategies, by name.
            kinds: kind of each strategy, and the strategy.
        """
        self._first, self._steps, self._kinds = first, steps, kinds
        self.predicted: dict[str, float] = {}
        self.bounds = set[str]()
        self.reference: Reference | None = None
        self.layers: LayerGraph | None = None
        self.batch = 0
        self.usual_seconds = self.largest_speedup = math.inf
        self._conclusion: TuningResult | None = None  # of the reference

    @property
    def known(self) -> dict[str, float]:
        """Predictions by name, without bounds that leave out a part of the step."""
        if self.reference is None or self.reference.is_whole:
            return dict(self.predicted)
        return {name: s for name, s in self.predicted.items() if name not in self.bounds}

    def forget(self) -> None:
        """Drops what has been predicted and measured, except data parallelism."""
        self.predicted.clear()
        self.bounds.clear()
        self.layers, self.batch = None, 0

    def refer(self, everyone: Sequence[Sequence[float]], is_repeated: bool) -> None:
        """Takes data parallelism as measured.

        Args:
            everyone: by rank, seconds of steps under its plan.
            is_repeated: whether step times have changed since tuning.
        """
        before, self._conclusion = self._conclusion, self._first.state.conclusion
        is_current = not is_repeated or self._conclusion is not before
        self.reference = Reference.from_result(self._conclusion, everyone, is_repeated, is_current)
        if is_repeated and self.reference is not None:
            self.usual_seconds = self.reference.compared.step_seconds

    def describe_slow(self, name: str) -> str:
        """Returns why a strategy is too slow, in a clause; empty if it may be fast."""
        reference, (kind, _) = self.reference, self._kinds[name]
        if reference is None:
            return "" if kind.trains_alone else f"nothing predicts its step or one of {FIRST}"
        compared = reference.compared
        self.largest_speedup = compared.speedup
        if not kind.trains_alone:
            return reference.describe_bound(kind)
        self.predicted[name] = compared.one_worker_seconds
        self.bounds.add(name)
        if compared.speedup > HOPELESS:
            return f"it is predicted to be far slower: {compared.describe()}"
        return ""

    def measure(self, name: str, args: Any, kwargs: Any, is_joint: bool, may_repeat: bool) -> str:
        """Measures layers on all ranks; returns why they are not known, in a clause.

        Args:
            name: strategy whose step has the layers.
            args: of the step.
            kwargs: of the step.
            is_joint: see `CandidateStep.measure_layers`.
            may_repeat: whether layers run several times.
        """
        assert self.reference is not None
        _, num_ranks = self._first.rendezvous.rank_and_size
        repeats = self.reference.num_repeats if may_repeat else 1
        measure: Callable[[], tuple[LayerGraph, int]] = partial(
            self._steps[name].measure_layers, args, kwargs, num_ranks, repeats, is_joint
        )
        layers, self.batch, reason = measure_layers(self.reference, measure)
        everyone = self._first.exchange([layers and layers.to_document(), reason])
        if reasons := [theirs for _, theirs in everyone if theirs]:
            self.batch = 0
            return str(reasons[0])
        self.layers = LayerGraph.mean([LayerGraph.from_document(graph) for graph, _ in everyone])
        return ""

    def predict(self, chosen: Mapping[str, Mapping[str, Any]]) -> dict[str, FamilyPrediction]:
        """Predicts strategies from layers.

        Args:
            chosen: arguments that earlier predictions chose, by name.
        """
        assert self.reference is not None and self.layers is not None
        families = {
            name: (kind, dataclasses.replace(strategy, **chosen.get(name, {})))
            for name, (kind, strategy) in self._kinds.items()
        }
        found = predict_families(self.layers, self.reference.links, self.batch, families)
        seconds = {name: each.seconds for name, each in found.items() if not each.problem}
        self.predicted |= seconds
        self.bounds -= seconds.keys()
        return found

    def update(self, names: Sequence[str]) -> None:
        """Takes the predictions of the plans of strategies, if they have any."""
        for name in names:
            seconds = self.seconds_under_plan(name)
            if seconds is not None:
                self.predicted[name] = seconds
                self.bounds.discard(name)

    def seconds_under_plan(self, name: str) -> float | None:
        """Returns the predicted step under a strategy's plan, with transfers; None if unknown."""
        step, exchange_seconds = self._steps[name], self._kinds[name][0].exchange_seconds
        seconds = step.predicted_seconds
        if seconds is None or exchange_seconds is None:
            return seconds
        if self.layers is None or self.reference is None:
            return seconds
        return seconds + exchange_seconds(step.plan, self.layers, self.reference.links)

    def seconds_of(self, names: Sequence[str]) -> dict[str, float]:
        """Returns a measured step of data parallelism, and predicted ones of others, by name."""
        if self.reference is None:
            return {}
        others = {name: self.predicted[name] for name in names if name in self.predicted}
        return {FIRST: self.reference.compared.step_seconds, **others}

    def contradicted(
        self, names: Sequence[str], medians: Mapping[str, float], seconds_left: float
    ) -> list[str]:
        """Returns strategies whose steps contradict the links of their plans, on all ranks alike.

        Without time to measure links again, and for other turns, there are none.

        Args:
            names: strategies that take part.
            medians: measured steps, by name.
            seconds_left: seconds in which trials may go on.
        """
        seconds_left -= LEAST_STEPS * sum(medians.values())
        plans = {name: self.seconds_under_plan(name) for name in names if name in medians}
        found = [
            name
            for name, predicted in plans.items()
            if predicted
            and contradicts_links(medians[name], predicted, self._steps[name].link_share)
        ]
        is_late = seconds_left < 0
        if self.reference is not None:
            is_late |= bool(self.reference.describe_late(seconds_left, len(found)))
        return list(self._first.exchange([] if is_late else found)[0])  # rank 0 may know more
