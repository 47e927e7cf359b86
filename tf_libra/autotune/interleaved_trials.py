"""The model proposes, measurement disposes: the best few plans by prediction are run in turns.

Every step of a race trains. Plans take turns, so that what disturbs the machine disturbs
all of them: a round holds one step of each, in an order that is drawn for every other round and
reversed in the next, for a drift to cancel out. Steps are compared with their neighbours in time
(`paired_timing.py`). A plan that is clearly slower than the best drops out; the race is over when
it is clear that no plan is faster than the best by more than what is worth a race. Of those that
steps do not tell apart, prediction decides as far as it is to be trusted: the noisier the steps and
the better the model, the more.
"""

import json
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_libra.autotune.budget import BudgetTracker
from tf_libra.autotune.paired_timing import PairedTimings, standings
from tf_libra.autotune.phase import Phase
from tf_libra.autotune.trial import Trial, TrialResult
from tf_libra.internal import formatting, validation
from tf_libra.specs.plan import Plan

MAX_ROUNDS = 12
# Rounds before anything is decided, and the probability of error up to which a plan counts as
# slower. Every round tests again, so that a plan as good as the best drops out more often than
# that; little is lost with it.
LEAST_ROUNDS = 4
_SURE = 0.02
# With fewer nothing tells two plans apart, and a step's luck decides.
FEWEST_ROUNDS = 2
# By which a plan may be faster than the best without a further round for its sake.
_WORTH = 0.02
# Of the absolute value of what is normally distributed with deviation 1, the median.
_MEDIAN_OF_NORMAL = 0.6745
# No model is trusted further, however well it has done on a few plans.
_LEAST_DOUBT = 0.01

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Candidate:
    """A plan in a race.

    Attributes:
      plan: which.
      predicted_seconds: its step, as the model says; None without a model.
      seconds: its step's seconds in every round it took part in.
      places: of these among all steps of the race, in time; empty: the plans had their turns in
        one order in every round.
    """

    plan: Plan
    predicted_seconds: float | None
    seconds: tuple[float, ...]
    places: tuple[int, ...] = ()

    @property
    def median_seconds(self) -> float | None:
        """Median seconds of the plan's steps; None without steps."""
        return float(np.median(self.seconds)) if self.seconds else None


@dataclass(frozen=True)
class Race:
    """The outcome of a race.

    Attributes:
      contenders: the winner first, then those that took part as long, then those that dropped out,
        the last to go first.
    """

    contenders: tuple[Candidate, ...]

    @property
    def winner(self) -> Candidate:
        """The plan that takes the shortest step, by what was measured and what is predicted."""
        return self.contenders[0]

    @property
    def num_rounds(self) -> int:
        """Complete rounds."""
        return len(self.winner.seconds)

    @property
    def median_error(self) -> float | None:
        """Median over the plans of |predicted / measured step - 1|; None where nothing is known."""
        errors = [
            abs(one.predicted_seconds / one.median_seconds - 1)
            for one in self.contenders
            if one.predicted_seconds is not None and one.median_seconds
        ]
        return float(np.median(errors)) if errors else None

    def lead(self, contender: Candidate) -> tuple[float, float] | None:
        """Compare a contender's step with the winner's.

        Returns:
          The ratio of their seconds, by adjacent steps, and the probability of such a lead between
          plans that are equal; None with fewer than two rounds.
        """
        rounds = min(len(contender.seconds), self.num_rounds)
        if rounds < FEWEST_ROUNDS or contender is self.winner:
            return None
        index = next(i for i, one in enumerate(self.contenders) if one is contender)
        return self._standings.lead(index, 0)

    @cached_property
    def _standings(self) -> PairedTimings:
        """The comparison of all contenders, each of which had steps."""
        count = len(self.contenders)
        steps = sorted(
            (place, index, seconds)
            for index, one in enumerate(self.contenders)
            for place, seconds in zip(
                one.places or range(index, count * len(one.seconds), count),
                one.seconds,
                strict=True,
            )
        )
        _, plans, seconds = zip(*steps, strict=True)
        return standings(plans, seconds, count)

    def is_noise(self, contender: Candidate) -> bool:
        """Returns whether a contender that came to the end is not surely slower than the winner."""
        lead = self.lead(contender)
        return lead is not None and len(contender.seconds) == self.num_rounds and lead[1] > _SURE

    @property
    def _is_predicted(self) -> bool:
        """True if other plans' steps took less, and prediction has decided against them."""
        predicted = self.winner.predicted_seconds
        faster = [
            one.predicted_seconds
            for one in self.contenders[1:]
            if (lead := self.lead(one)) is not None and lead[0] < 1
        ]
        return bool(faster) and all(predicted and one and one > predicted for one in faster)

    def keeping(self, plan: Plan) -> "Race":
        """The same, with this plan first unless the winner is clearly faster.

        Of a race that has ended before two rounds nothing is clear.
        """
        for one in self.contenders:
            if one.plan.fingerprint == plan.fingerprint and (
                self.num_rounds < FEWEST_ROUNDS or self.is_noise(one)
            ):
                return Race((one, *(other for other in self.contenders if other is not one)))
        return self

    def describe(self) -> str:
        """The standings in words."""
        told = []
        for one in self.contenders:
            groups, seconds = len(one.plan.groups), one.median_seconds
            text = f"{one.plan.strategy} in {groups} group{'s' if groups > 1 else ''}"
            if seconds is not None:
                text += f" {formatting.time(seconds)}"
            if one.predicted_seconds is not None:
                text += f" (predicted {formatting.time(one.predicted_seconds)})"
            if (lead := self.lead(one)) is not None:
                text += f", beside the first {formatting.change(lead[0] - 1)}"
            if self.is_noise(one):
                text += f", {formatting.NO_DIFFERENCE}"
            elif one is self.winner and self._is_predicted:
                text += ", predicted faster than what cannot be told apart from it"
            told.append(text)
        return f"race over {self.num_rounds} rounds: {'; '.join(told)}"

    def to_document(self) -> list[dict[str, Any]]:
        """Its contenders as JSON values; `from_document` reads them back unchanged."""
        return [
            {
                "plan": json.loads(one.plan.to_json()),
                "predicted_seconds": one.predicted_seconds,
                "seconds": list(one.seconds),
                "places": list(one.places),
            }
            for one in self.contenders
        ]

    @classmethod
    def from_document(cls, document: Any) -> "Race":
        """Reads what `to_document` wrote; `ValueError` names what is wrong with it."""
        contenders = []
        for index, entry in enumerate(validation.sequence("race", document)):
            field = f"race[{index}]"
            validation.keys(field, entry, ("plan", "predicted_seconds", "seconds"), ("places",))
            predicted = entry["predicted_seconds"]
            if predicted is not None:
                predicted = validation.real(f"{field}.predicted_seconds", predicted, above=0)
            seconds = validation.sequence(f"{field}.seconds", entry["seconds"])
            places = validation.sequence(f"{field}.places", entry.get("places", ()))
            if places:  # earlier versions had none
                validation.same_length(f"{field}.places", places, "step", len(seconds))
            contenders.append(
                Candidate(
                    Plan.from_json(json.dumps(entry["plan"])),
                    predicted,
                    tuple(validation.real(f"{field}.seconds", one, above=0) for one in seconds),
                    tuple(validation.integer(f"{field}.places", one) for one in places),
                )
            )
        if not contenders:
            raise ValueError("race must hold at least one plan, got none")
        return cls(tuple(contenders))


def race(
    proposed: Sequence[tuple[Plan, float | None]],
    end: BudgetTracker,
    seed: int = 0,
    error: float | None = None,
    known: Collection[str] = (),
) -> Generator[Trial, TrialResult | None, Race]:
    """Yields steps under the proposed plans in turns until one is left, or the end has come.

    Is sent what was observed of each step. A round that the end cuts short does not count.

    Args:
      proposed: different plans, the most promising first, each with its predicted step; at least
        one. One alone wins without a step.
      end: queried before every step.
      seed: of the order within rounds.
      error: median relative error of predicted steps, for how far they are to be trusted; None
        where that is not known, and they are not.
      known: fingerprints of plans that have had steps: their instantiation is paid for.
    """
    if not proposed:
        raise ValueError("proposed must hold at least one plan, got none")
    predicted = [seconds for _, seconds in proposed]
    random = np.random.default_rng(seed)
    steps: list[tuple[int, float]] = []  # of whole rounds, in time: whose, and what it took
    running = list(range(len(proposed)))
    gone: list[int] = []
    # The first step of a plan pays for its instantiation.
    new = [index for index in running if proposed[index][0].fingerprint not in known]
    over = len(running) == 1 or (yield from _round(proposed, new, end, is_first=True)) is None
    order: list[int] = []
    num_rounds = 0
    while not over:
        if num_rounds % 2 == 0:
            order = random.permutation(running).tolist()
        else:
            order = [index for index in reversed(order) if index in running]
        measured = yield from _round(proposed, order, end)
        if measured is None:
            break
        steps += measured.items()
        num_rounds += 1
        if num_rounds >= LEAST_ROUNDS:
            found = _standings_of(steps, len(proposed))
            running, slower = _judge(running, found)
            gone = slower + gone
            over = num_rounds >= MAX_ROUNDS or _is_settled(running, found)
    if 0 < num_rounds < LEAST_ROUNDS:  # after more rounds, the loop has computed them
        found = _standings_of(steps, len(proposed))
    if num_rounds:
        running = _chosen(running, found, predicted, error if num_rounds >= FEWEST_ROUNDS else None)
    return Race(tuple(_contender(index, proposed[index], steps) for index in [*running, *gone]))


def _contender(
    index: int, proposed: tuple[Plan, float | None], steps: Sequence[tuple[int, float]]
) -> Candidate:
    places = tuple(place for place, (whose, _) in enumerate(steps) if whose == index)
    return Candidate(*proposed, tuple(steps[place][1] for place in places), places)


def _standings_of(steps: Sequence[tuple[int, float]], count: int) -> PairedTimings:
    plans, seconds = zip(*steps, strict=True)
    return standings(plans, seconds, count)


def _round(
    proposed: Sequence[tuple[Plan, float | None]],
    order: Sequence[int],
    end: BudgetTracker,
    is_first: bool = False,
) -> Generator[Trial, TrialResult | None, dict[int, float] | None]:
    """Yields one step of each plan; returns None if the end came before all had theirs.

    A step without an observation is repeated: data may come to an end in it, and go on.
    """
    measured: dict[int, float] = {}
    for index in order:
        while index not in measured:
            if end.is_exhausted(is_first):
                return None
            observation = yield Trial(Phase.RACE, proposed[index][0], False, is_first)
            if is_first:
                break
            if observation is not None and observation.seconds > 0:
                measured[index] = observation.seconds
    return measured


def _judge(running: Sequence[int], found: PairedTimings) -> tuple[list[int], list[int]]:
    """Returns the plans that go on, and those clearly slower than the best, the slowest last."""
    best, *others = _ranked(running, found)
    slower = [index for index in others if found.chance(index, best) < _SURE]
    return [index for index in running if index not in slower], slower


def _is_settled(running: Sequence[int], found: PairedTimings) -> bool:
    """Returns whether clearly no plan beats the best by what is worth a further round."""
    best, *others = _ranked(running, found)
    worth = float(np.log1p(_WORTH))
    return all(found.chance(index, best, -worth) < _SURE for index in others)


def _ranked(running: Sequence[int], found: PairedTimings) -> list[int]:
    """The fastest first, as measured."""
    return sorted(running, key=lambda index: float(found.logarithms[index]))


def _chosen(
    running: Sequence[int],
    found: PairedTimings,
    predicted: Sequence[float | None],
    error: float | None,
) -> list[int]:
    """The best first: by steps, and by prediction among those that steps do not tell apart."""
    ranked = _ranked(running, found)
    known = [one for index in ranked if (one := predicted[index])]
    if error is None or len(known) < len(ranked):
        return ranked
    best = ranked[0]
    alike = [best, *(index for index in ranked[1:] if found.chance(index, best) >= _SURE)]
    believed = dict(zip(ranked, _believed(ranked, found, np.log(known), error), strict=True))
    alike.sort(key=lambda index: believed[index])
    return [*alike, *(index for index in ranked if index not in alike)]


def _believed(
    ranked: Sequence[int], found: PairedTimings, predicted: _Array, error: float
) -> list[float]:
    """Combine measured and predicted seconds, each weighted by how far it can be trusted.

    The mean of a normal distribution that is known twice: with the steps' noise, and with the
    model's error, which is at least what the model misses these plans by beyond the noise.

    Args:
      ranked: the plans.
      found: how they stand.
      predicted: logarithms of their seconds, in the same order.
      error: median relative error of predictions.
    """
    measured = found.logarithms[ranked] - found.logarithms[ranked].mean()
    expected = predicted - predicted.mean()
    noise = float(np.diag(found.covariance)[ranked].mean())
    missed = float(np.mean((measured - expected) ** 2)) - noise
    doubt = max((error / _MEDIAN_OF_NORMAL) ** 2, missed, _LEAST_DOUBT**2)
    trust = noise / (noise + doubt)
    return [float(one) for one in (1 - trust) * measured + trust * expected]
