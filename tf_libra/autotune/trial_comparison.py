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
from tf_libra.specs.plan import Plan

# Fewer rounds cannot separate two plans from noise.
MIN_ROUNDS = 2
# Error probability below which a plan counts as slower.
SIGNIFICANCE = 0.02


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
      candidates: the winner, then the others that ran in all rounds, then the eliminated ones, the
        last to be eliminated first.
    """

    candidates: tuple[Candidate, ...]

    @property
    def winner(self) -> Candidate:
        """Candidate with the shortest step by measurement and prediction."""
        return self.candidates[0]

    @property
    def num_rounds(self) -> int:
        """Number of complete rounds."""
        return len(self.winner.seconds)

    @property
    def median_error(self) -> float | None:
        """Median of |predicted / measured step - 1| over the plans; None if there is none."""
        errors = [
            abs(candidate.predicted_seconds / candidate.median_seconds - 1)
            for candidate in self.candidates
            if candidate.predicted_seconds is not None and candidate.median_seconds
        ]
        return float(np.median(errors)) if errors else None

    def ratio_and_p_value(self, candidate: Candidate) -> tuple[float, float] | None:
        """Compares a candidate's step with the winner's.

        Returns:
          The ratio of their seconds and its p-value between equal plans; None with fewer than
          `MIN_ROUNDS` rounds.
        """
        rounds = min(len(candidate.seconds), self.num_rounds)
        if rounds < MIN_ROUNDS or candidate is self.winner:
            return None
        index = next(i for i, other in enumerate(self.candidates) if other is candidate)
        return self._timings.ratio_and_p_value(index, 0)

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

    def is_noise(self, candidate: Candidate) -> bool:
        """Returns whether a candidate of all rounds is not significantly slower than the winner."""
        compared = self.ratio_and_p_value(candidate)
        if compared is None or len(candidate.seconds) != self.num_rounds:
            return False
        _, p_value = compared
        return p_value > SIGNIFICANCE

    @property
    def _won_by_prediction(self) -> bool:
        """True if the prediction decided against plans with shorter measured steps."""
        predicted = self.winner.predicted_seconds
        faster = [
            candidate.predicted_seconds
            for candidate in self.candidates[1:]
            if (compared := self.ratio_and_p_value(candidate)) is not None and compared[0] < 1
        ]
        return bool(faster) and all(
            predicted and seconds and seconds > predicted for seconds in faster
        )

    def preferring(self, plan: Plan) -> "Race":
        """Returns the race with this plan as the winner unless the winner is clearly faster.

        With fewer than `MIN_ROUNDS` rounds no plan is clearly faster.
        """
        for candidate in self.candidates:
            if candidate.plan.fingerprint == plan.fingerprint and (
                self.num_rounds < MIN_ROUNDS or self.is_noise(candidate)
            ):
                others = (other for other in self.candidates if other is not candidate)
                return Race((candidate, *others))
        return self

    def describe(self) -> str:
        """Returns one line with the times of all candidates."""
        texts = []
        for candidate in self.candidates:
            groups, seconds = len(candidate.plan.groups), candidate.median_seconds
            text = f"{candidate.plan.strategy} in {groups} group{'s' if groups > 1 else ''}"
            if seconds is not None:
                text += f" {formatting.time(seconds)}"
            if candidate.predicted_seconds is not None:
                text += f" (predicted {formatting.time(candidate.predicted_seconds)})"
            if (compared := self.ratio_and_p_value(candidate)) is not None:
                text += f", {formatting.change(compared[0] - 1)} against the winner"
            if self.is_noise(candidate):
                text += f", {formatting.NO_DIFFERENCE}"
            elif candidate is self.winner and self._won_by_prediction:
                text += ", predicted faster than plans with no significant difference"
            texts.append(text)
        return f"race over {self.num_rounds} rounds: {'; '.join(texts)}"

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
    """Comparison of two plans' steps, in the rounds that both ran.

    Attributes:
      plan: plan that is compared.
      other: plan that it is compared with.
      num_rounds: number of rounds that both ran.
      low: first quartile of the ratio of their seconds (`plan` / `other`) over the rounds.
      ratio: median of this ratio.
      high: third quartile of this ratio.
      is_noise: True if the difference is not significant.
    """

    plan: Candidate
    other: Candidate
    num_rounds: int
    low: float
    ratio: float
    high: float
    is_noise: bool

    def describe(self) -> str:
        """Returns the comparison as a phrase."""
        middle = formatting.change(self.ratio - 1)
        spread = (
            f"quartiles {formatting.change(self.low - 1)} to {formatting.change(self.high - 1)},"
            f" {self.num_rounds} interleaved rounds"
        )
        other = describe_plan(self.other)
        if self.is_noise:
            return f"{formatting.NO_DIFFERENCE} against {other} ({middle}, {spread})"
        return f"{middle} against {other} ({spread})"


def compare_with_winner(race: Race, other: Candidate) -> TrialComparison | None:
    """Compares the winner with another plan; None with fewer than `MIN_ROUNDS` rounds of both."""
    rounds = min(len(other.seconds), race.num_rounds)
    if rounds < MIN_ROUNDS or other is race.winner:
        return None
    ratios = np.divide(race.winner.seconds[:rounds], other.seconds[:rounds])
    low, middle, high = (float(ratio) for ratio in np.quantile(ratios, (0.25, 0.5, 0.75)))
    return TrialComparison(race.winner, other, rounds, low, middle, high, race.is_noise(other))


def compare_with_one_all_reduce(race: Race | None) -> TrialComparison | None:
    """Compares the winner with one all-reduce after backward; None if that was no candidate."""
    others = () if race is None else race.candidates[1:]
    one_group = [other for other in others if len(other.plan.groups) == 1]
    if race is None or not one_group or len(race.winner.plan.groups) == 1:
        return None
    return compare_with_winner(race, one_group[0])


def compare_with_requested(race: Race | None, requested: str) -> TrialComparison | None:
    """Compares the winner with the best plan of the requested strategy; None if it is one."""
    if race is None or race.winner.plan.strategy == requested:
        return None
    others = [other for other in race.candidates[1:] if other.plan.strategy == requested]
    return compare_with_winner(race, others[0]) if others else None


def describe_plan(candidate: Candidate) -> str:
    """Returns a plan's strategy and number of groups as a phrase."""
    groups = len(candidate.plan.groups)
    if groups == 1:
        return "one all-reduce after backward"
    return f"{candidate.plan.strategy} in {groups} groups"


def explain_strategy_change(
    requested: str, planned: str, race: Race | None, notes: tuple[str, ...]
) -> str | None:
    """Explains why the plan is not of the requested strategy; None if it is.

    Args:
      requested: name of the requested strategy.
      planned: name of the plan's strategy.
      race: race that the plan won.
      notes: notes of tuning.
    """
    if requested == planned:
        return None
    head = f"Active plan: {planned} instead of the requested {requested}"
    compared = compare_with_requested(race, requested)
    if compared is not None:
        step, other = compared.plan.median_seconds, compared.other.median_seconds
        text = (
            f"{head}: in interleaved trials its step took {formatting.time(step)}, that of"
            f" {describe_plan(compared.other)} {formatting.time(other)}"
        )
        return f"{text}, {formatting.NO_DIFFERENCE}." if compared.is_noise else f"{text}."
    reasons = [
        note for note in notes if f"instead of {requested}" in note or "one all-reduce" in note
    ]
    if race is not None and race.num_rounds:
        medians = [candidate.median_seconds for candidate in race.candidates]
        if race.winner.median_seconds == min(seconds for seconds in medians if seconds is not None):
            return f"{head}: its step was the shortest in interleaved trials."
        # The prediction decided, or the plan was active before.
        return f"{head}: no plan was clearly faster in interleaved trials."
    return f"{head}: {reasons[0]}." if reasons else f"{head}."
