"""Trials in training steps: their phases, their plans and their results."""

from dataclasses import dataclass
from enum import StrEnum

from tf_libra.profiling.gradient_timing import StepProduction
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord


class Phase(StrEnum):
    """Phase of a training function."""

    TRACE = "trace"
    MEASURE = "measure"
    SAMPLE = "sample"
    FIT = "fit"
    PLAN = "plan"
    SEARCH = "search"
    RACE = "race"
    RUN = "run"
    PASS_THROUGH = "pass-through"


@dataclass(frozen=True)
class Trial:
    """Trial of a plan in the next training step, which trains as well.

    Attributes:
        phase: MEASURE, SAMPLE, SEARCH or RACE.
        plan: plan of the step.
        traced: True if rank 0 traces the step.
        is_first: True if the step also instantiates the plan's graph, so that its time is ignored.
        is_consecutive: True if the step has to follow the previous trial's, whose gathers it
            overlaps with.
    """

    phase: Phase
    plan: Plan
    traced: bool
    is_first: bool = False
    is_consecutive: bool = False


@dataclass(frozen=True)
class Postponed:
    """Marker of a training step without a trial, since the script's profiler session is active."""


@dataclass(frozen=True, eq=False)
class TrialResult:
    """Rank 0's observation of a trial.

    Attributes:
        production: production times of gradients; None if they were not or could not be traced.
        records: executed all-reduces.
        problem: reason for a missing production; empty if there is one or none was requested.
        called_ns: start and end of the step's call, nanoseconds since the epoch.
        is_interrupted: True if another profiler session replaced the trace.
        gathers: gathers of weights that ended during the call, among them those of the step before.
    """

    production: StepProduction | None
    records: tuple[AllReduceRecord, ...]
    problem: str = ""
    called_ns: tuple[int, int] = (0, 0)
    is_interrupted: bool = False
    gathers: tuple[AllReduceRecord, ...] = ()

    @property
    def seconds(self) -> float:
        """Wall seconds of the step."""
        return (self.called_ns[1] - self.called_ns[0]) * 1e-9
