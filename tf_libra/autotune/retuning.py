"""Retuning while a plan is active: short bursts of trials after drift checks."""

import math
from collections.abc import Callable
from enum import Enum, auto

from tf_libra.autotune.drift_detector import DriftDetector
from tf_libra.autotune.postponement import PostponingTuner
from tf_libra.autotune.trial import Postponed, Trial, TrialResult
from tf_libra.autotune.trial_comparison import MIN_ROUNDS
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.specs.plan import Plan

# Consecutive trials after a drift check.
RETUNE_STEPS_PER_CHECK = 8


class DriftVerdict(Enum):
    """Outcome of a drift check."""

    NO_CHANGE = auto()
    DRIFTED = auto()  # retuning starts
    CACHE_STALE = auto()  # the cached plan does not fit: the full tuning starts
    RETUNING = auto()  # retuning continues
    RECOVERED = auto()  # the drift has ended: retuning stops


class Retuner:
    """Scheduler of retuning on rank 0: decides when to retune, and supplies the trials.

    Attributes:
        drift: detector that every step under the active plan is recorded in.
    """

    def __init__(
        self,
        max_overhead: float,
        result: TuningResult,
        make_tuner: Callable[[Plan], PostponingTuner],
        is_cached: bool = False,
    ) -> None:
        """Starts with the active result.

        Args:
            max_overhead: share of training time that retuning may cost.
            result: active result.
            make_tuner: makes a tuner that leaves the given active plan only for a clearly faster
                one.
            is_cached: True if an earlier job stored the result. This job then still has its whole
                tuning budget: the first retuning runs without pauses and is not counted.
        """
        self._max_overhead = max_overhead
        self._is_cached = is_cached
        self.drift = DriftDetector(max_overhead, _expected_seconds(result))
        self._result = result
        self._make_tuner = make_tuner
        self._tuner: PostponingTuner | None = None
        self._pending: Trial | Postponed | None = None
        self._trials_left: float = 0

    def check(self) -> DriftVerdict:
        """Runs a drift check; trials follow unless the verdict is NO_CHANGE or RECOVERED."""
        self.drift.check()
        if self._tuner is not None and self.drift.has_recovered:
            self._tuner = self._pending = None
            self.drift.on_recovered()
            return DriftVerdict.RECOVERED
        starts = self._tuner is None and self.drift.has_drifted
        if self._tuner is None and not starts:
            return DriftVerdict.NO_CHANGE
        if not self._is_cached and not self.drift.affords(RETUNE_STEPS_PER_CHECK):
            return DriftVerdict.NO_CHANGE
        if starts:
            self._tuner = self._make_tuner(self._result.plan)
        if self._is_cached:
            self._trials_left = math.inf
            return DriftVerdict.CACHE_STALE
        self._trials_left = RETUNE_STEPS_PER_CHECK
        return DriftVerdict.DRIFTED if starts else DriftVerdict.RETUNING

    def next_trial(self, result: TrialResult | None) -> Trial | TuningResult | None:
        """Returns the next trial, or the new result; None to return to the active plan.

        A postponed trial ends the burst. A trial that has to follow the previous one extends it.

        Args:
            result: result of the previous trial; None before the first of a burst.
        """
        assert self._tuner is not None
        try:
            if self._pending is None:
                self._pending = self._tuner.send(result)
        except StopIteration as finished:
            return self._finish(finished.value)
        trial = self._pending
        is_consecutive = isinstance(trial, Trial) and trial.is_consecutive
        if self._trials_left == 0 and not is_consecutive:
            return None
        self._trials_left = max(self._trials_left - 1, 0)
        self._pending = None
        return None if isinstance(trial, Postponed) else trial

    def _finish(self, found: TuningResult) -> TuningResult | None:
        """Returns the new result if a race measured it; None keeps the active plan."""
        self._tuner = self._pending = None
        is_raced = found.race is not None
        if is_raced:
            self._result = found
        expected = _expected_seconds(found) if is_raced else None
        if self._is_cached:
            self._is_cached = False
            self.drift = DriftDetector(self._max_overhead, expected)
        else:
            self.drift.on_retuned(expected)
        return found if is_raced else None


def _expected_seconds(result: TuningResult) -> float | None:
    """Returns the steady-state step time that a race measured; None without enough rounds.

    The first steps under the plan then set the expected time. A model's prediction may be off by
    more than a drift, and one or two steps are too noisy.
    """
    race = result.race
    if race is None or race.num_rounds < MIN_ROUNDS:
        return None
    return race.winner.median_seconds
