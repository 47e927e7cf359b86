"""Results of interleaved trials: candidates, the race between them, and comparisons of two plans.

Steps at different times differ for many reasons, so plans are compared only by steps that
alternated in a race.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tf_libra.autotune.paired_timing import PairedTimings, estimate_paired_timings
from tf_libra.internal import formatting, validation
from tf_libra.internal.values import Naturals, Positive, Value, parse_items, plain
from tf_libra.planning.data_parallel.auto import Auto
from tf_libra.specs.plan import Plan

# Fewer rounds cannot separate two plans from noise.
MIN_ROUNDS = 2
# Error probability below which a plan counts as slower while a race eliminates plans.
SIGNIFICANCE = 0.02
# Probability that a plan counts as faster than the active one although none is, over all plans.
# Confidence limits and the choice of the active plan share it.
_ERROR = 0.005


def error_per_comparison(num_plans: int) -> float:
    """Returns the error probability of one comparison, if each plan is compared with one plan."""
    return _ERROR / max(num_plans - 1, 1)


@dataclass(frozen=True)
class Candidate(Value):
    """Plan in a race.

    Attributes:
      plan: plan of the steps.
      predicted_seconds: predicted step; None without a model.
      seconds: seconds of its step in every round that it took part in.
      places: positions of these steps in the race; empty: all rounds had the same order.
    """

    plan: Plan
    predicted_seconds: Positive | None
    seconds: tuple[Positive, ...]
    places: Naturals = ()

    def _validate(self) -> None:
        if self.places:  # earlier versions stored none
            validation.same_length("places", self.places, "step", len(self.seconds))

    @property
    def median_seconds(self) -> float | None:
        """Median seconds of the plan's steps; None without steps."""
        return float(np.median(self.seconds)) if self.seconds else None


@dataclass(frozen=True)
class Race(Value):
    """Result of a race: interleaved trials of several plans.

    Attributes:
      candidates: the winner, then the others by the measured time of their steps.
    """

    candidates: tuple[Candidate, ...]

    @property
    def winner(self) -> Candidate:
        """Candidate that the race selected."""
        return self.candidates[0]

    @property
    def num_rounds(self) -> int:
        """Number of complete rounds."""
        return max(len(candidate.seconds) for candidate in self.candidates)

    @property
    def median_error(self) -> float | None:
        """Median of |predicted / measured step - 1| over the plans; None if there is none."""
        errors = [
            abs(candidate.predicted_seconds / candidate.median_seconds - 1)
            for candidate in self.candidates
            if candidate.predicted_seconds is not None and candidate.median_seconds
        ]
        return float(np.median(errors)) if errors else None

    def compare(
        self, candidate: Candidate, other: Candidate | None = None
    ) -> "TrialComparison | None":
        """Compares the steps of two plans.

        Args:
          candidate: plan that is compared.
          other: plan that it is compared with; None for the winner.

        Returns:
          The comparison; None with fewer than `MIN_ROUNDS` rounds of one of them.
        """
        other = self.winner if other is None else other
        rounds = min(len(candidate.seconds), len(other.seconds))
        if rounds < MIN_ROUNDS or candidate is other:
            return None
        plan, reference = (
            next(i for i, each in enumerate(self.candidates) if each is wanted)
            for wanted in (candidate, other)
        )
        num_plans = sum(bool(each.seconds) for each in self.candidates)
        low, high = self._timings.ratio_limits(plan, reference, error_per_comparison(num_plans))
        ratio = self._timings.ratio(plan, reference)
        return TrialComparison(candidate, other, rounds, low, ratio, high)

    @cached_property
    def _timings(self) -> PairedTimings:
        """Comparison of all candidates, each of which has steps."""
        count = len(self.candidates)
        steps = sorted(
            (place, index, seconds)
            for index, candidate in enumerate(self.candidates)
            for place, seconds in zip(
                candidate.places or range(index, count * len(candidate.seconds), count),
                candidate.seconds,
                strict=True,
            )
        )
        _, plans, seconds = zip(*steps, strict=True)
        return estimate_paired_timings(plans, seconds, count)

    def describe(self) -> str:
        """Returns one line with every plan's step relative to the winner's."""
        texts = [f"{name_plan(self.winner)} is active"]
        for candidate in self.candidates[1:]:
            compared = self.compare(candidate)
            ratio = "too few rounds" if compared is None else compared.describe_ratio()
            texts.append(f"{name_plan(candidate)} {ratio}")
        rounds = f"{self.num_rounds} round{'' if self.num_rounds == 1 else 's'}"
        return f"interleaved trials over {rounds}: {'; '.join(texts)}"

    def to_document(self) -> Any:
        """Returns the list of candidates as JSON values, which `parse` reads back unchanged."""
        return plain(self.candidates)

    @classmethod
    def parse(cls, name: str, value: Any) -> "Race":
        """Reads the result of `to_document`; a `ValueError` names the field that is wrong."""
        candidates = parse_items(name, value, Candidate)
        if not candidates:
            raise ValueError(f"{name} must hold at least one plan, got none")
        return cls(candidates)


@dataclass(frozen=True)
class TrialComparison:
    """Comparison of two plans' steps, paired with their neighbours in time.

    Attributes:
      plan: plan that is compared.
      other: plan that it is compared with.
      num_rounds: number of rounds that both ran.
      low: lower confidence limit of the ratio of their seconds (`plan` / `other`).
      ratio: estimate of this ratio.
      high: upper confidence limit of this ratio.
    """

    plan: Candidate
    other: Candidate
    num_rounds: int
    low: float
    ratio: float
    high: float

    @property
    def is_noise(self) -> bool:
        """True if the difference is not significant."""
        return self.low <= 1 <= self.high

    def describe_ratio(self) -> str:
        """Returns the change of the step with its confidence limits."""
        limits = formatting.limits(self.low, self.high)
        return f"{formatting.change(self.ratio - 1)} ({limits})"

    def describe(self) -> str:
        """Returns the comparison as a phrase."""
        against = f"against {describe_plan(self.other)}"
        rounds = f"in {self.num_rounds} interleaved rounds"
        if self.is_noise:
            return f"{formatting.NO_DIFFERENCE} {against}: {self.describe_ratio()} {rounds}"
        return f"{self.describe_ratio()} {against} {rounds}"


def compare_with_one_all_reduce(race: Race | None) -> TrialComparison | None:
    """Compares the winner with one all-reduce after backward; None if that was no candidate."""
    others = () if race is None else race.candidates[1:]
    one_group = [other for other in others if other.plan.is_one_all_reduce]
    if race is None or not one_group or race.winner.plan.is_one_all_reduce:
        return None
    return race.compare(race.winner, one_group[0])


def compare_with_requested(race: Race | None, requested: str) -> TrialComparison | None:
    """Compares the best plan of the requested strategy with the winner; None if it is one."""
    if race is None or race.winner.plan.strategy == requested:
        return None
    others = [other for other in race.candidates[1:] if other.plan.strategy == requested]
    return race.compare(others[0]) if others else None


def describe_plan(candidate: Candidate) -> str:
    """Returns a plan's strategy and number of groups as a phrase."""
    plan = candidate.plan
    rounded = f" in {plan.wire_dtype}" if plan.wire_dtype else ""
    if plan.is_one_all_reduce:
        return f"one all-reduce{rounded} after backward"
    return f"{plan.strategy} in {plan.describe_groups()}{rounded}"


def name_plan(candidate: Candidate) -> str:
    """Returns a plan's strategy, groups, threads and wire dtype, to tell similar plans apart."""
    plan = candidate.plan
    threads = ", ".join(map(str, plan.thread_counts))
    wire = f", {plan.wire_dtype}" if plan.wire_dtype else ""
    return f"{plan.strategy} in {plan.describe_groups()} (r = {threads}){wire}"


def explain_strategy_change(
    requested: str, planned: str, race: Race | None, notes: tuple[str, ...]
) -> str | None:
    """Explains why the plan is not of the requested strategy; None if it is.

    Any plan that was in the trials is one of "auto".

    Args:
      requested: name of the requested strategy.
      planned: name of the plan's strategy.
      race: race that the plan won.
      notes: notes of tuning.
    """
    was_tried = race is not None and race.num_rounds > 0
    if requested == planned or (requested == Auto.name and was_tried):
        return None
    head = f"Active plan: {planned} instead of the requested {requested}"
    compared = compare_with_requested(race, requested)
    if compared is not None and not compared.is_noise:
        return (
            f"{head}: in interleaved trials, steps of {describe_plan(compared.plan)} took"
            f" {compared.describe_ratio()} in comparison."
        )
    reasons = [
        note for note in notes if f"instead of {requested}" in note or "one all-reduce" in note
    ]
    if was_tried:
        # The plan was active before, or the strategy has no single plan.
        return f"{head}: no plan was clearly faster in interleaved trials."
    return f"{head}: {reasons[0]}." if reasons else f"{head}."
