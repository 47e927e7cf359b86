"""The strategy that won trials between families: kept for later jobs, and watched for drift."""

from dataclasses import dataclass
from typing import ClassVar

from tf_libra.autotune.drift_detector import STEPS_PER_DRIFT_CHECK, DriftDetector
from tf_libra.internal.codec import Document
from tf_libra.planning.family_comparison import FamilyComparison

# Least calls that a comparison takes, whose graphs may hold several steps each.
_LEAST_CALLS_PER_CHECK = 8


@dataclass(frozen=True)
class FamilyChoice(Document):
    """Outcome of trials between data parallelism and other strategies.

    Attributes:
        name: strategy that goes on.
        families: the strategies side by side.
        plan: JSON of the strategy's plan; empty for data parallelism, whose plan is cached apart.
        computation: digest of the step that the plan is for; empty for data parallelism.
    """

    name: str
    families: FamilyComparison
    plan: str = ""
    computation: str = ""

    FORMAT: ClassVar = "tf-libra family choice"

    @property
    def measured_seconds(self) -> dict[str, float]:
        """Seconds of a step of each timed strategy, by name."""
        rows = self.families.rows
        return {row.name: row.measured_seconds for row in rows if row.measured_seconds is not None}


class FamilyWatch:
    """Watch for step times that change for good, so that another strategy may be faster now."""

    def __init__(self, max_overhead: float) -> None:
        """Begins before any trial.

        Args:
            max_overhead: share of training time that trials may cost after the first ones.
        """
        self._max_overhead = max_overhead
        self._drift: DriftDetector | None = None
        self._num_steps = self._num_calls = 0  # since the last comparison

    def on_chosen(self, seconds: float | None) -> None:
        """Begins to watch a strategy whose step took this long in trials; None if none ran."""
        self._num_steps = self._num_calls = 0
        if self._drift is None:
            self._drift = DriftDetector(self._max_overhead, seconds)
        else:
            self._drift.on_retuned(seconds)

    def record_step(self, seconds: float, num_steps: int = 1) -> None:
        """Records a call of the chosen strategy.

        Args:
            seconds: seconds of each step.
            num_steps: steps in the graph.
        """
        self._num_steps += num_steps
        self._num_calls += 1
        if self._drift is not None:
            self._drift.record_step(seconds, num_steps)

    def record_trial(self, seconds: float) -> None:
        """Records a step of trials."""
        if self._drift is not None:
            self._drift.record_trial(seconds)

    @property
    def is_due(self) -> bool:
        """Returns whether ranks compare step times now; the same step on every rank."""
        is_watched = self._drift is not None and self._max_overhead > 0
        has_steps = self._num_steps >= STEPS_PER_DRIFT_CHECK
        return is_watched and has_steps and self._num_calls >= _LEAST_CALLS_PER_CHECK

    def has_drifted(self, num_trials: int) -> bool:
        """Compares step times; returns whether they have changed and trials are affordable."""
        assert self._drift is not None
        self._num_steps = self._num_calls = 0
        self._drift.check()
        return self._drift.has_drifted and self._drift.affords(num_trials)
