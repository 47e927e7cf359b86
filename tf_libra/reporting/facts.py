"""The facts to report about one training function."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from tf_libra.autotune import Phase, TuningResult
from tf_libra.profiling.overlap_samples import MeasuredTimeline


@dataclass(frozen=True)
class RunSnapshot:
    """A snapshot of the facts known so far.

    Attributes:
        function: its name; empty before it is known.
        engine: what carries gradients.
        asked: the strategy that the user requested; empty before it is known.
        phase: where in its life it is.
        conclusion: the active tuning result; None before.
        timelines: the latest measured steps under the plan.
        remarks: what a reader should know, in the order in which it was found.
        num_steps: how many steps there were, by phase.
        step_seconds: wall-clock seconds of the latest steps that were neither a plan's first nor
            traced, by phase.
    """

    function: str = ""
    engine: str = "lanes"
    asked: str = ""
    phase: Phase = Phase.TRACE
    conclusion: TuningResult | None = None
    timelines: tuple[MeasuredTimeline, ...] = ()
    remarks: tuple[str, ...] = ()
    num_steps: Mapping[Phase, int] = field(default_factory=dict)
    step_seconds: Mapping[Phase, tuple[float, ...]] = field(default_factory=dict)

    def median_step_seconds(self, phase: Phase) -> float | None:
        """Median of a phase's `step_seconds`; None where there are none.

        In RUN these are the steps under the plan. Those of other phases ran at other times: they
        say little about it (`tf_libra.autotune.trial_comparison` compares).
        """
        seconds = self.step_seconds.get(phase)
        return statistics.median(seconds) if seconds else None

    def median_backward_seconds(self) -> float | None:
        """Median of measured backward time under the plan; None where none was measured."""
        if not self.timelines:
            return None
        return statistics.median(one.backward_seconds for one in self.timelines)
