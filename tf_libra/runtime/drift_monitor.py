"""Drift checks: steps, the same on all ranks, at which rank 0 may start new trials of plans."""

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
    """Drift checks of one set of gradients whose plan is active."""

    def __init__(self, again: Retuner | None, reporter: RunReporter) -> None:
        """Begins to monitor the active plan.

        Args:
            again: decides; rank 0 alone has it.
            reporter: reports the decisions.
        """
        self._again = again
        self._reporter = reporter
        self._num_calls = 0

    @property
    def is_due(self) -> bool:
        """Returns whether the next step is a drift check; the same on every rank."""
        return self._num_calls >= CALLS_PER_LOOK

    def begin(self) -> None:
        """Counts from 0: steps under the active plan begin, or go on after others."""
        self._num_calls = 0

    def ran(self, seconds: float, usual: bool, num_steps: int = 1) -> None:
        """Records a call under the active plan, with its seconds per step."""
        self._num_calls += 1
        if self._again is None:
            return
        if usual:
            self._again.drift.ran(seconds, num_steps)
        else:
            self._again.drift.tried(seconds)

    def tried(self, seconds: float) -> None:
        """Records the seconds of a step in which something was tried out."""
        if self._again is not None:
            self._again.drift.tried(seconds)

    def look(self, step: int) -> KeepPlan:
        """Returns rank 0's decision on the steps since the last drift check."""
        assert self._again is not None
        found = self._again.look()
        self._reporter.on_drift_check(found, self._again.drift, step)
        return KeepPlan(
            then_try=found in (DriftVerdict.DRIFT, DriftVerdict.STALE, DriftVerdict.STILL)
        )

    def next(self, observation: TrialResult | None) -> Trial | TuningResult | KeepPlan:
        """Returns rank 0's decision during trials."""
        assert self._again is not None
        what = self._again.next(observation)
        return KeepPlan() if what is None else what
