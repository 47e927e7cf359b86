"""Looks: steps, the same on every rank, at which rank 0 says whether plans are tried out again."""

from tf_libra.autotune import (
    CALLS_PER_LOOK,
    DriftVerdict,
    Retuner,
    Trial,
    TrialResult,
    TuningResult,
)
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime.directive import KeepPlan


class DriftMonitor:
    """Of one set of gradients whose plan is in force."""

    def __init__(self, again: Retuner | None, story: RunReporter) -> None:
        """The plan is in force.

        Args:
            again: decides; rank 0 alone has it.
            story: is told.
        """
        self._again = again
        self._story = story
        self._num_calls = 0

    @property
    def is_due(self) -> bool:
        """Whether the next step is one; the same on every rank."""
        return self._num_calls >= CALLS_PER_LOOK

    def begin(self) -> None:
        """Steps under the plan in force begin, or go on after others."""
        self._num_calls = 0

    def ran(self, seconds: float, usual: bool, num_steps: int = 1) -> None:
        """A call under the plan in force took so long for each of its steps."""
        self._num_calls += 1
        if self._again is None:
            return
        if usual:
            self._again.drift.ran(seconds, num_steps)
        else:
            self._again.drift.tried(seconds)

    def tried(self, seconds: float) -> None:
        """A step took so long in which something was tried out."""
        if self._again is not None:
            self._again.drift.tried(seconds)

    def look(self, step: int) -> KeepPlan:
        """Rank 0's judgement of the steps since the last look."""
        assert self._again is not None
        found = self._again.look()
        self._story.looked(found, self._again.drift, step)
        return KeepPlan(
            then_try=found in (DriftVerdict.DRIFT, DriftVerdict.STALE, DriftVerdict.STILL)
        )

    def next(self, observation: TrialResult | None) -> Trial | TuningResult | KeepPlan:
        """Rank 0's judgement while things are tried out."""
        assert self._again is not None
        what = self._again.next(observation)
        return KeepPlan() if what is None else what
