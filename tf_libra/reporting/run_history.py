"""History of one training function, and snapshots of it for reports."""

import statistics
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from tf_libra.autotune import Phase, TuningResult
from tf_libra.profiling.overlap_samples import MeasuredTimeline

_MAX_STEPS = 200


@dataclass(frozen=True)
class RunSnapshot:
    """State of a training function's history.

    Attributes:
        function: name of the function; empty before it is known.
        engine: name of the engine.
        requested: name of the requested strategy; empty before it is known.
        error_feedback: whether rounding errors are added to the next gradients.
        phase: current phase.
        conclusion: the active tuning result; None before.
        timelines: latest traced steps under the plan.
        remarks: notes for the reader, in order.
        num_steps: number of steps by phase.
        other_steps: number of steps by strategies of other kinds, by name.
        step_seconds: wall-clock seconds of the latest steady-state steps by phase, without a
            plan's first step and traced steps.
        omitted_bytes: zeros that this rank left out in the latest step with telemetry.
    """

    function: str = ""
    engine: str = "lanes"
    requested: str = ""
    error_feedback: bool = False
    phase: Phase = Phase.TRACE
    conclusion: TuningResult | None = None
    timelines: tuple[MeasuredTimeline, ...] = ()
    remarks: tuple[str, ...] = ()
    num_steps: Mapping[Phase, int] = field(default_factory=dict)
    other_steps: Mapping[str, int] = field(default_factory=dict)
    step_seconds: Mapping[Phase, tuple[float, ...]] = field(default_factory=dict)
    omitted_bytes: int = 0

    def median_step_seconds(self, phase: Phase) -> float | None:
        """Returns the median of a phase's `step_seconds`; None without any.

        Steps of RUN are those under the plan. Steps of other phases ran at other times, so they do
        not compare with it (`tf_libra.autotune.trial_comparison` compares).
        """
        seconds = self.step_seconds.get(phase)
        return statistics.median(seconds) if seconds else None

    def median_backward_seconds(self) -> float | None:
        """Returns the median of measured backward time under the plan; None without any."""
        if not self.timelines:
            return None
        return statistics.median(timeline.backward_seconds for timeline in self.timelines)


class RunHistory:
    """Events of one training function, in order."""

    def __init__(self, engine: str, requested: str = "", error_feedback: bool = False) -> None:
        """Creates a history without events.

        Args:
            engine: name of the engine.
            requested: name of the requested strategy.
            error_feedback: whether rounding errors are added to the next gradients.
        """
        self._engine, self._requested = engine, requested
        self._error_feedback = error_feedback
        self._function = ""
        self._phase = Phase.TRACE
        self._conclusion: TuningResult | None = None
        self._timelines: deque[MeasuredTimeline] = deque(maxlen=_MAX_STEPS)
        self._remarks: list[str] = []
        self._num_steps: Counter[Phase] = Counter()
        self._other_steps: Counter[str] = Counter()
        self._times_steps = True
        self._seconds: dict[Phase, deque[float]] = {}
        self._omitted_bytes = 0

    def set_engine(self, engine: str) -> None:
        """Records the engine that the ranks have agreed on."""
        self._engine = engine

    def set_function(self, function: str) -> None:
        """Records the function's name."""
        self._function = function

    def add_remark(self, text: str) -> bool:
        """Records a note for the reader; returns True if it is new."""
        if text in self._remarks:
            return False
        self._remarks.append(text)
        return True

    def enter_phase(self, phase: Phase, is_retuning: bool = False) -> bool:
        """Records that a step begins in `phase`; returns True if the phase is new.

        Args:
            phase: phase of the step.
            is_retuning: True for a trial while a plan is active, which does not compare with the
                trials before.
        """
        before, self._phase = self._phase, phase
        self._times_steps = phase is Phase.RUN or not is_retuning
        return before is not phase

    def set_plan(self, conclusion: TuningResult) -> None:
        """Records the active plan, and drops the measurements before its activation.

        This includes a plan that stays active after retuning: steps have drifted since, and so have
        predictions.
        """
        before, self._conclusion = self._conclusion, conclusion
        if before is not None:
            self._timelines.clear()
            self._seconds.pop(Phase.RUN, None)

    def add_step(self, seconds: float, is_steady: bool, num_steps: int) -> None:
        """Records the seconds of each of `num_steps` steps.

        Args:
            seconds: wall-clock seconds of one step.
            is_steady: False for a plan's first step and for traced steps.
            num_steps: number of steps in the call.
        """
        self._num_steps[self._phase] += num_steps
        if is_steady and self._times_steps:
            known = self._seconds.setdefault(self._phase, deque(maxlen=_MAX_STEPS))
            known.append(seconds)

    def add_other_step(self, strategy: str) -> None:
        """Records a step that a strategy of another kind has trained."""
        self._other_steps[strategy] += 1

    def add_timeline(self, timeline: MeasuredTimeline) -> None:
        """Records the timeline of a traced step under the plan."""
        self._timelines.append(timeline)

    def set_omitted_bytes(self, num_bytes: int) -> None:
        """Records the zeros that this rank left out of what it sent in a step under the plan."""
        self._omitted_bytes = num_bytes

    def snapshot(self) -> RunSnapshot:
        """Returns the present state."""
        return RunSnapshot(
            function=self._function,
            engine=self._engine,
            requested=self._requested,
            error_feedback=self._error_feedback,
            phase=self._phase,
            conclusion=self._conclusion,
            timelines=tuple(self._timelines),
            remarks=tuple(self._remarks),
            num_steps=dict(self._num_steps),
            other_steps=dict(self._other_steps),
            step_seconds={phase: tuple(seconds) for phase, seconds in self._seconds.items()},
            omitted_bytes=self._omitted_bytes,
        )
