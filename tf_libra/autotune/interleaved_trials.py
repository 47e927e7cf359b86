"""Race: interleaved trials of the plans with the best predictions, which select one of them.

Every step trains. A round holds one step of each plan, so that disturbances of the machine affect
all plans. The order is random in every other round and reversed in the next one, which cancels
drift. Steps are compared with their neighbours in time (`paired_timing.py`).

The preferred plan, such as that of the requested strategy, wins unless another plan is
significantly faster. A plan leaves the race when it is significantly slower than the best, or too
slow to replace the preferred plan with a gain that is worth a further round. Without a preferred
plan, the prediction decides among plans that steps cannot separate, weighted by the noise of the
steps and the error of the model.
"""

from collections.abc import Collection, Generator, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tf_libra.autotune.budget import BudgetTracker
from tf_libra.autotune.paired_timing import (
    MEDIAN_OF_NORMAL,
    PairedTimings,
    estimate_paired_timings,
)
from tf_libra.autotune.trial import Phase, Trial, TrialResult
from tf_libra.autotune.trial_comparison import (
    MIN_ROUNDS,
    SIGNIFICANCE,
    Candidate,
    Race,
    error_per_comparison,
)
from tf_libra.specs.plan import Plan

MAX_ROUNDS = 16
# Rounds before the first elimination. Every later round tests again, so the error probability
# exceeds SIGNIFICANCE; eliminating a plan as good as the best loses little.
ROUNDS_BEFORE_ELIMINATION = 4
# Possible gain of a plan over the best that is worth a further round.
_WORTHWHILE_GAIN = 0.02
# Lower bound of a model's error, however well it predicted a few plans.
_MIN_MODEL_ERROR = 0.01

_Array = NDArray[np.float64]


def race(
    candidates: Sequence[tuple[Plan, float | None]],
    budget: BudgetTracker,
    seed: int = 0,
    error: float | None = None,
    known: Collection[str] = (),
    preferred: Sequence[str] = (),
    overlapping: Collection[str] = (),
    guarded: Collection[str] = (),
    max_rounds: int = MAX_ROUNDS,
) -> Generator[Trial, TrialResult | None, Race]:
    """Yields trials in rounds until one plan is left or the budget is spent; sent their results.

    A round that the budget ends is ignored.

    Args:
      candidates: different plans with their predicted steps, the most promising first; at least
        one. A single plan wins without a step.
      budget: grants every step.
      seed: seed of the order within rounds.
      error: median relative error of the predicted steps; None to ignore the predictions.
      known: fingerprints of plans whose graphs are instantiated already.
      preferred: fingerprints of candidates. The first one wins that no other candidate is
        significantly faster than.
      overlapping: fingerprints of plans whose gathers overlap with the next step. An unmeasured
        step precedes each of their measured steps, which so overlaps with gathers, too.
      guarded: fingerprints of plans that win only if one of them is significantly faster than every
        other plan.
      max_rounds: most rounds.
    """
    if not candidates:
        raise ValueError("candidates must hold at least one plan, got none")
    fingerprints = [plan.fingerprint for plan, _ in candidates]
    favourites = [fingerprints.index(each) for each in preferred if each in fingerprints]
    doubtful = {index for index, each in enumerate(fingerprints) if each in guarded}
    if len(doubtful) == len(candidates):
        doubtful = set()
    random = np.random.default_rng(seed)
    steps: list[tuple[int, float]] = []  # candidate and seconds, of complete rounds in time order
    running = list(range(len(candidates)))
    new = [index for index in running if fingerprints[index] not in known]
    pairs = {index for index in running if fingerprints[index] in overlapping}
    over = len(running) == 1 or (yield from _round(candidates, new, budget, is_first=True)) is None
    order: list[int] = []
    num_rounds = 0
    while not over:
        if num_rounds % 2 == 0:
            order = random.permutation(running).tolist()
        else:
            order = [index for index in reversed(order) if index in running]
        measured = yield from _round(candidates, order, budget, pairs)
        if measured is None:
            break
        steps += measured.items()
        num_rounds += 1
        if num_rounds >= ROUNDS_BEFORE_ELIMINATION:
            timings = _timings_of(steps, len(candidates))
            default = _default(favourites, timings)
            kept = _fastest_safe(running, doubtful, timings) if default is None else default
            is_proven = default is None and doubtful > _unproven(doubtful, timings)
            running = _eliminate(running, timings, default, kept)
            target = None if is_proven else kept
            over = num_rounds >= max_rounds or _is_decided(running, timings, target)
    ranking = sorted(running, key=lambda index: (index not in favourites[:1], index in doubtful))
    if num_rounds:
        timings = _timings_of(steps, len(candidates))
        winner = _default(favourites, timings)
        if winner is None:
            trusted_error = error if num_rounds >= MIN_ROUNDS else None
            predicted = [seconds for _, seconds in candidates]
            unproven = _unproven(doubtful, timings)
            running = [index for index in running if index not in unproven] or running
            winner = _select(running, timings, predicted, trusted_error)
        others = (index for index in range(len(candidates)) if index != winner)
        ranking = [winner, *_by_step_time(others, timings)]
    return Race(tuple(_candidate(index, candidates[index], steps) for index in ranking))


def _candidate(
    index: int, plan: tuple[Plan, float | None], steps: Sequence[tuple[int, float]]
) -> Candidate:
    places = tuple(place for place, (candidate, _) in enumerate(steps) if candidate == index)
    return Candidate(*plan, tuple(steps[place][1] for place in places), places)


def _timings_of(steps: Sequence[tuple[int, float]], count: int) -> PairedTimings:
    plans, seconds = zip(*steps, strict=True)
    return estimate_paired_timings(plans, seconds, count)


def _round(
    candidates: Sequence[tuple[Plan, float | None]],
    order: Sequence[int],
    budget: BudgetTracker,
    pairs: Collection[int] = (),
    is_first: bool = False,
) -> Generator[Trial, TrialResult | None, dict[int, float] | None]:
    """Yields one trial of each plan; returns None if the budget ended the round.

    A step without a result is repeated, such as the step in which a data set ended.

    Args:
      candidates: plans with their predicted steps.
      order: plans of the round.
      budget: grants every step.
      pairs: plans of which an unmeasured step precedes each measured one.
      is_first: whether these are the first steps of the plans.
    """
    measured: dict[int, float] = {}
    for index in order:
        plan, is_pair = candidates[index][0], index in pairs
        while index not in measured:
            if is_pair:
                if not budget.take_step():
                    return None
                yield Trial(Phase.RACE, plan, traced=False)
            if not budget.take_step(is_first):
                return None
            result = yield Trial(Phase.RACE, plan, False, is_first, is_consecutive=is_pair)
            if is_first:
                break
            if result is not None and result.seconds > 0:
                measured[index] = result.seconds
    return measured


def _default(favourites: Sequence[int], timings: PairedTimings) -> int | None:
    """Returns the first preferred plan that no plan is significantly faster than."""
    plans = range(len(timings.log_seconds))
    level = error_per_comparison(len(plans))
    for index in favourites:
        if all(timings.p_value(index, other) >= level for other in plans if other != index):
            return index
    return None


def _fastest_safe(
    running: Sequence[int], doubtful: Collection[int], timings: PairedTimings
) -> int | None:
    """Returns the fastest plan that is not doubtful; None if all are, or none is."""
    safe = [index for index in running if index not in doubtful]
    return _by_step_time(safe, timings)[0] if doubtful and safe else None


def _unproven(doubtful: Collection[int], timings: PairedTimings) -> set[int]:
    """Returns the doubtful plans that are not significantly faster than every other plan."""
    others = [index for index in range(len(timings.log_seconds)) if index not in doubtful]
    level = error_per_comparison(len(timings.log_seconds))
    return {
        index
        for index in doubtful
        if any(timings.p_value(other, index) >= level for other in others)
    }


def _eliminate(
    running: Sequence[int], timings: PairedTimings, default: int | None, safest: int | None
) -> list[int]:
    """Returns the plans that may still win, in the same order.

    Args:
      running: plans in the race.
      timings: comparison of their steps.
      default: plan that wins unless another is significantly faster; None for the fastest.
      safest: the fastest plan that is not doubtful, which stays, too; None if none is doubtful.
    """
    best = _by_step_time(running, timings)[0]

    def may_win(index: int) -> bool:
        if index in (default, safest):
            return True
        may_be_best = index == best or timings.p_value(index, best) >= SIGNIFICANCE
        return may_be_best and (default is None or _may_gain(index, default, timings))

    return [index for index in running if may_win(index)]


def _is_decided(running: Sequence[int], timings: PairedTimings, default: int | None) -> bool:
    """Returns whether no plan can replace the default, or else the best, with a worthwhile gain."""
    target = _by_step_time(running, timings)[0] if default is None else default
    return not any(_may_gain(index, target, timings) for index in running if index != target)


def _may_gain(plan: int, other: int, timings: PairedTimings) -> bool:
    """Returns whether a plan may be faster than another by more than a further round is worth."""
    return timings.p_value(plan, other, -float(np.log1p(_WORTHWHILE_GAIN))) >= SIGNIFICANCE


def _by_step_time(plans: Iterable[int], timings: PairedTimings) -> list[int]:
    """Returns the plans by measured step time, the fastest first."""
    return sorted(plans, key=lambda index: float(timings.log_seconds[index]))


def _select(
    running: Sequence[int],
    timings: PairedTimings,
    predicted: Sequence[float | None],
    error: float | None,
) -> int:
    """Returns the best plan; predictions decide among the plans that steps cannot separate."""
    ranked = _by_step_time(running, timings)
    known = [seconds for index in ranked if (seconds := predicted[index])]
    if error is None or len(known) < len(ranked):
        return ranked[0]
    tied = [
        index
        for index in ranked
        if all(timings.p_value(index, other) >= SIGNIFICANCE for other in ranked if other != index)
    ]
    combined = _combine(ranked, timings, np.log(known), error)
    estimates = dict(zip(ranked, combined, strict=True))
    return min(tied or ranked[:1], key=lambda index: estimates[index])


def _combine(
    ranked: Sequence[int], timings: PairedTimings, predicted: _Array, error: float
) -> list[float]:
    """Combines measured and predicted log seconds by inverse-variance weighting.

    The variance of a measurement is the noise of the steps. That of a prediction is the model's
    squared error, which is at least the observed error of these plans beyond the noise.

    Args:
      ranked: plans.
      timings: comparison of their steps.
      predicted: logarithms of their predicted seconds, in the same order.
      error: median relative error of predictions.
    """
    measured = timings.log_seconds[ranked] - timings.log_seconds[ranked].mean()
    expected = predicted - predicted.mean()
    noise = float(np.diag(timings.covariance)[ranked].mean())
    observed = float(np.mean((measured - expected) ** 2)) - noise
    variance = max((error / MEDIAN_OF_NORMAL) ** 2, observed, _MIN_MODEL_ERROR**2)
    weight = noise / (noise + variance)  # of the prediction
    return [float(value) for value in (1 - weight) * measured + weight * expected]
