"""Postpone trials while a profiler session of the script is active.

TensorFlow has one profiler session per process, so that no trial can be traced meanwhile, and steps
under a profiler are slower than the steps that a plan is chosen for.
"""

import time
from collections.abc import Callable, Generator
from dataclasses import replace

from tf_libra.autotune.budget import Budget
from tf_libra.autotune.trial import Postponed, Trial, TrialResult
from tf_libra.autotune.tuner_registry import Tuner
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.internal import formatting

PostponingTuner = Generator[Trial | Postponed, TrialResult | None, TuningResult]


class Pause:
    """Count the steps in which trials were postponed, and their seconds.

    Attributes:
        num_steps: postponed steps.
        reason: why the last of them was.
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with nothing postponed.

        Args:
            budget: of tuning; as many steps and seconds may be postponed.
            clock: seconds.
        """
        self._budget = budget
        self._clock = clock
        self._seconds = 0.0
        self.num_steps = 0
        self.reason = ""

    def clock(self) -> float:
        """Return seconds, without those of postponed steps."""
        return self._clock() - self._seconds

    @property
    def is_spent(self) -> bool:
        """True if no more steps may be postponed, so that tuning has to end."""
        budget = self._budget
        return self.num_steps >= budget.max_steps or self._seconds >= budget.max_seconds

    def run(
        self, what: Trial | Postponed, reason: str = ""
    ) -> Generator[Trial | Postponed, TrialResult | None, TrialResult | None]:
        """Yield for one step; count the step if it tries nothing or was interrupted."""
        start = self._clock()
        observation = yield what
        if observation is not None and observation.is_interrupted:
            reason = observation.problem
        if isinstance(what, Postponed) or (observation is not None and observation.is_interrupted):
            self.num_steps += 1
            self._seconds += self._clock() - start
            self.reason = reason
        return observation

    def annotated(self, conclusion: TuningResult) -> TuningResult:
        """Return the conclusion with the reason why tuning ended, if the pause is spent."""
        if not self.is_spent:
            return conclusion
        note = (
            f"tuning ended without the trials that were left, since {self.reason} in"
            f" {self.num_steps} steps ({formatting.time(self._seconds)}): end the profiler session"
            f" earlier, or start it when the step is settled"
        )
        plan = replace(conclusion.plan, notes=(*conclusion.plan.notes, note))
        return replace(conclusion, plan=plan, notes=(*conclusion.notes, note), is_complete=False)


def postponing(
    make_tuner: Callable[[Pause], Tuner],
    pause: Pause,
    in_use: Callable[[], str],
    log: Callable[[str], None] = lambda text: None,
) -> PostponingTuner:
    """Run a tuner, with steps that try nothing while another profiler session is active.

    Args:
        make_tuner: starts the tuner, by the clock of the pause and until that is spent.
        pause: how many steps may be postponed. They are not charged to the tuner.
        in_use: why a step cannot be traced now; empty if it can.
        log: takes a line of text.
    """
    tuner = make_tuner(pause)
    observation: TrialResult | None = None
    while True:
        try:
            experiment = tuner.send(observation)
        except StopIteration as finished:
            return pause.annotated(finished.value)
        observation, before = None, pause.num_steps
        while not pause.is_spent:
            if reason := in_use():
                if pause.num_steps == before:
                    log(f"tuning: postponed, since {reason}")
                yield from pause.run(Postponed(), reason)
                continue
            if pause.num_steps > before:
                log(f"tuning: goes on after {pause.num_steps - before} postponed steps")
            made = yield from pause.run(experiment)
            if made is None or not made.is_interrupted:
                observation = made
                break
            before = pause.num_steps
