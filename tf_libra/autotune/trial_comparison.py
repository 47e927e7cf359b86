"""Comparison of a plan with others by steps in turns: measured steps are compared in no other way.

Steps at different times differ for many reasons; steps of a race took turns.
"""

from dataclasses import dataclass

import numpy as np

from tf_libra.autotune.interleaved_trials import FEWEST_ROUNDS, Candidate, Race
from tf_libra.internal import formatting


@dataclass(frozen=True)
class TrialComparison:
    """A plan's step against another plan's, in rounds that both ran.

    Attributes:
      plan: whose step is compared.
      other: what it is compared with.
      num_rounds: how many rounds both ran.
      low: first quartile over the rounds of the ratio of their seconds, the plan's to the other's.
      ratio: its median.
      high: its third quartile.
      is_noise: whether nothing tells the two apart.
    """

    plan: Candidate
    other: Candidate
    num_rounds: int
    low: float
    ratio: float
    high: float
    is_noise: bool

    def describe(self) -> str:
        """The comparison in words."""
        middle = formatting.change(self.ratio - 1)
        spread = (
            f"middle half {formatting.change(self.low - 1)} to {formatting.change(self.high - 1)},"
            f" {self.num_rounds} rounds in turns"
        )
        other = describe_plan(self.other)
        if self.is_noise:
            return f"{formatting.NO_DIFFERENCE} against {other} ({middle}, {spread})"
        return f"{middle} against {other} ({spread})"


def compare_with(race: Race, other: Candidate) -> TrialComparison | None:
    """The winner's step against another plan's; None with fewer than two rounds of both."""
    rounds = min(len(other.seconds), race.num_rounds)
    if rounds < FEWEST_ROUNDS or other is race.winner:
        return None
    ratios = np.divide(race.winner.seconds[:rounds], other.seconds[:rounds])
    low, middle, high = (float(one) for one in np.quantile(ratios, (0.25, 0.5, 0.75)))
    return TrialComparison(race.winner, other, rounds, low, middle, high, race.is_noise(other))


def against_one_all_reduce(race: Race | None) -> TrialComparison | None:
    """Against one all-reduce after backward, where that took part; None where it did not."""
    others = () if race is None else race.contenders[1:]
    one_group = [other for other in others if len(other.plan.groups) == 1]
    if race is None or not one_group or len(race.winner.plan.groups) == 1:
        return None
    return compare_with(race, one_group[0])


def against_asked(race: Race | None, asked: str) -> TrialComparison | None:
    """Compares with the best plan of the requested strategy; None if the winner is such a plan."""
    if race is None or race.winner.plan.strategy == asked:
        return None
    of_it = [other for other in race.contenders[1:] if other.plan.strategy == asked]
    return compare_with(race, of_it[0]) if of_it else None


def describe_plan(contender: Candidate) -> str:
    """A plan in a few words."""
    groups = len(contender.plan.groups)
    if groups == 1:
        return "one all-reduce after backward"
    return f"{contender.plan.strategy} in {groups} groups"


def why_another(asked: str, made: str, race: Race | None, notes: tuple[str, ...]) -> str | None:
    """Explains by the measurements why a plan is not of the requested strategy; None if it is.

    Args:
      asked: the requested strategy.
      made: that of the plan.
      race: the plans that were run in turns.
      notes: what tuning has noted.
    """
    if asked == made:
        return None
    head = f"The plan is of {made}, not of {asked}, which was asked for"
    compared = against_asked(race, asked)
    if compared is not None:
        step, other = compared.plan.median_seconds, compared.other.median_seconds
        told = (
            f"{head}: in turns its step took {formatting.time(step)}, that of"
            f" {describe_plan(compared.other)} {formatting.time(other)}"
        )
        return f"{told}, {formatting.NO_DIFFERENCE}." if compared.is_noise else f"{told}."
    reasons = [note for note in notes if f"instead of {asked}" in note or "one all-reduce" in note]
    if race is not None and race.num_rounds:
        steps = [one.median_seconds for one in race.contenders if one.median_seconds is not None]
        if race.winner.median_seconds == min(steps):
            return f"{head}: of the plans that were run in turns its step was the shortest."
        # Prediction has decided, or the plan was active before.
        return f"{head}: none of the plans that were run in turns was clearly faster."
    return f"{head}: {reasons[0]}." if reasons else f"{head}."
