"""Trials in training steps, and their results."""

from dataclasses import dataclass

from tf_libra.autotune.phase import Phase
from tf_libra.profiling.gradient_timing import StepProduction
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord


@dataclass(frozen=True)
class Trial:
    """The trial of the next training step, which trains as well.

    Attributes:
        phase: MEASURE, SAMPLE, SEARCH or RACE.
        plan: what it runs under.
        traced: whether rank 0 is to trace it.
        is_first: whether it pays for the plan's instantiation, and so tells nothing.
    """

    phase: Phase
    plan: Plan
    traced: bool
    is_first: bool = False


@dataclass(frozen=True)
class Postponed:
    """The next training step tries nothing: a profiler session of the script is active."""


@dataclass(frozen=True, eq=False)
class TrialResult:
    """Rank 0's observation of a step.

    Attributes:
        production: when gradients were produced; None if it was not, or could not be, traced.
        records: the all-reduces that were executed.
        problem: why there is no production, else empty.
        called_ns: when the step was called and when it returned, nanoseconds since the epoch.
        is_interrupted: whether another profiler session has taken the trace's place.
    """

    production: StepProduction | None
    records: tuple[AllReduceRecord, ...]
    problem: str = ""
    called_ns: tuple[int, int] = (0, 0)
    is_interrupted: bool = False

    @property
    def seconds(self) -> float:
        """Wall seconds of the step."""
        return (self.called_ns[1] - self.called_ns[0]) * 1e-9
