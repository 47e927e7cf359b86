"""Records what is reported about one training function, and decides nothing."""

import statistics
from collections import Counter, deque
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


_REMEMBERED_STEPS = 200


class RunHistory:
    """The events of one training function, in the order in which they happened."""

    def __init__(self, engine: str, asked: str = "") -> None:
        """Begins with only the engine that carries gradients and the requested strategy known."""
        self._engine, self._asked = engine, asked
        self._function = ""
        self._phase = Phase.TRACE
        self._conclusion: TuningResult | None = None
        self._timelines: deque[MeasuredTimeline] = deque(maxlen=_REMEMBERED_STEPS)
        self._remarks: list[str] = []
        self._num_steps: Counter[Phase] = Counter()
        self._keeps_seconds = True
        self._seconds: dict[Phase, deque[float]] = {}

    def set_engine(self, engine: str) -> None:
        """Records the engine that was chosen to carry gradients."""
        self._engine = engine

    def set_function(self, function: str) -> None:
        """The function's name is known."""
        self._function = function

    def add_remark(self, text: str) -> bool:
        """Something that a reader should know; returns whether it is new."""
        if text in self._remarks:
            return False
        self._remarks.append(text)
        return True

    def enter_phase(self, phase: Phase, again: bool = False) -> bool:
        """A step begins in `phase`; returns whether it is another than before.

        Args:
            phase: of the step.
            again: whether plans are tried out again: such steps say nothing of those before.
        """
        before, self._phase = self._phase, phase
        self._keeps_seconds = phase is Phase.RUN or not again
        return before is not phase

    def set_plan(self, conclusion: TuningResult) -> None:
        """Records the active plan, and forgets what was measured before it was concluded.

        The same for an unchanged plan: steps have drifted since, and so have predictions.
        """
        before, self._conclusion = self._conclusion, conclusion
        if before is not None:
            self._timelines.clear()
            self._seconds.pop(Phase.RUN, None)

    def add_step(self, seconds: float, usual: bool, num_steps: int) -> None:
        """Steps took so long each; `usual` unless it was a plan's first or traced."""
        self._num_steps[self._phase] += num_steps
        if usual and self._keeps_seconds:
            known = self._seconds.setdefault(self._phase, deque(maxlen=_REMEMBERED_STEPS))
            known.append(seconds)

    def add_timeline(self, timeline: MeasuredTimeline) -> None:
        """A step under the plan was traced."""
        self._timelines.append(timeline)

    def snapshot(self) -> RunSnapshot:
        """Returns what is known so far."""
        return RunSnapshot(
            function=self._function,
            engine=self._engine,
            asked=self._asked,
            phase=self._phase,
            conclusion=self._conclusion,
            timelines=tuple(self._timelines),
            remarks=tuple(self._remarks),
            num_steps=dict(self._num_steps),
            step_seconds={phase: tuple(seconds) for phase, seconds in self._seconds.items()},
        )
