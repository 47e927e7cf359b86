"""Retuning while a plan is active: in small doses, and only for as long as it is worth it."""

import math
from collections.abc import Callable
from enum import Enum, auto

from tf_libra.autotune.drift_detector import Drift
from tf_libra.autotune.interleaved_trials import FEWEST_ROUNDS
from tf_libra.autotune.postponing import PostponingTuner
from tf_libra.autotune.trial import Postponed, Trial, TrialResult
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.specs.plan import Plan

# Experiments in a row, after a look.
DOSE = 8


class DriftVerdict(Enum):
    """The verdict of a look."""

    NOTHING = auto()
    DRIFT = auto()  # and so tuning begins again
    STALE = auto()  # of what another job has left: this one tunes, as if it had found nothing
    STILL = auto()  # tuning again goes on
    PASSED = auto()  # what there was is over, and tuning again with it


class Retuner:
    """Decides on rank 0 when things are tried out again, and what."""

    def __init__(
        self,
        share: float,
        conclusion: TuningResult,
        tuner: Callable[[Plan], PostponingTuner],
        is_kept: bool = False,
    ) -> None:
        """Begin with the active conclusion.

        Args:
            share: of the steps' time that tuning again may cost.
            conclusion: the active one.
            tuner: makes a tuner from the active plan, which leaves this plan only for one that is
                clearly faster.
            is_kept: whether an earlier job has left the conclusion. This job then still has the
                steps to spend in which it would have tuned: the first retuning runs in one go,
                without doses, and does not count.
        """
        self._share = share
        self._is_kept = is_kept
        self.drift = Drift(share, _expected(conclusion))
        self._conclusion = conclusion
        self._new_tuner = tuner
        self._tuner: PostponingTuner | None = None
        self._next: Trial | Postponed | None = None
        self._left_of_dose: float = 0

    def look(self) -> DriftVerdict:
        """Judges the usual steps since the last look; a dose follows if there is a drift."""
        self.drift.look()
        if self._tuner is not None and self.drift.is_over:
            self._tuner = self._next = None
            self.drift.passed()
            return DriftVerdict.PASSED
        begins = self._tuner is None and self.drift.is_off
        if self._tuner is None and not begins:
            return DriftVerdict.NOTHING
        if not self._is_kept and not self.drift.affords(DOSE):
            return DriftVerdict.NOTHING
        if begins:
            self._tuner = self._new_tuner(self._conclusion.plan)
        if self._is_kept:
            self._left_of_dose = math.inf
            return DriftVerdict.STALE
        self._left_of_dose = DOSE
        return DriftVerdict.DRIFT if begins else DriftVerdict.STILL

    def next(self, observation: TrialResult | None) -> Trial | TuningResult | None:
        """Returns the trial of a dose's next step, or a new conclusion; None if the dose is over.

        Postponed trials end a dose.

        Args:
            observation: of the dose's step before; None before its first.
        """
        assert self._tuner is not None
        try:
            if self._next is None:
                self._next = self._tuner.send(observation)
        except StopIteration as finished:
            return self._settle(finished.value)
        if self._left_of_dose == 0:
            return None
        self._left_of_dose -= 1
        experiment, self._next = self._next, None
        return None if isinstance(experiment, Postponed) else experiment

    def _settle(self, found: TuningResult) -> TuningResult | None:
        """Returns the conclusion found, if a race measured it; None leaves the active plan."""
        self._tuner = self._next = None
        is_raced = found.race is not None
        if is_raced:
            self._conclusion = found
        expected = _expected(found) if is_raced else None
        if self._is_kept:
            self._is_kept = False
            self.drift = Drift(self._share, expected)
        else:
            self.drift.settled(expected)
        return found if is_raced else None


def _expected(conclusion: TuningResult) -> float | None:
    """Returns a usual step's seconds as measured in the race; None without enough rounds.

    The first steps under the plan then provide the expected time: a model's prediction may be off
    by more than a drift, and one or two steps are no measure.
    """
    race = conclusion.race
    if race is None or race.num_rounds < FEWEST_ROUNDS:
        return None
    return race.winner.median_seconds
