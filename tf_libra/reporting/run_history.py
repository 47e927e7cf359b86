"""Records what is reported about one training function, and decides nothing."""

from collections import Counter, deque

from tf_libra.autotune import Phase, TuningResult
from tf_libra.profiling.overlap_samples import MeasuredTimeline
from tf_libra.reporting.facts import RunSnapshot

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

    def met(self, engine: str) -> None:
        """Records the engine that was chosen to carry gradients."""
        self._engine = engine

    def named(self, function: str) -> None:
        """The function's name is known."""
        self._function = function

    def remarked(self, text: str) -> bool:
        """Something that a reader should know; returns whether it is new."""
        if text in self._remarks:
            return False
        self._remarks.append(text)
        return True

    def entered(self, phase: Phase, again: bool = False) -> bool:
        """A step begins in `phase`; returns whether it is another than before.

        Args:
            phase: of the step.
            again: whether plans are tried out again: such steps say nothing of those before.
        """
        before, self._phase = self._phase, phase
        self._keeps_seconds = phase is Phase.RUN or not again
        return before is not phase

    def in_force(self, conclusion: TuningResult) -> None:
        """Records the active plan, and forgets what was measured before it was concluded.

        The same for an unchanged plan: steps have drifted since, and so have predictions.
        """
        before, self._conclusion = self._conclusion, conclusion
        if before is not None:
            self._timelines.clear()
            self._seconds.pop(Phase.RUN, None)

    def took(self, seconds: float, usual: bool, num_steps: int) -> None:
        """Steps took so long each; `usual` unless it was a plan's first or traced."""
        self._num_steps[self._phase] += num_steps
        if usual and self._keeps_seconds:
            known = self._seconds.setdefault(self._phase, deque(maxlen=_REMEMBERED_STEPS))
            known.append(seconds)

    def measured(self, timeline: MeasuredTimeline) -> None:
        """A step under the plan was traced."""
        self._timelines.append(timeline)

    def facts(self) -> RunSnapshot:
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
