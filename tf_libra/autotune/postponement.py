"""Postponement of trials while a profiler session of the script is active.

TensorFlow has one profiler session per process, so no trial can be traced meanwhile. Steps under a
profiler are also slower than the steps that a plan is chosen for.
"""

import time
from collections.abc import Callable, Generator
from dataclasses import replace

from tf_libra.autotune.budget import Budget
from tf_libra.autotune.trial import Postponed, Trial, TrialResult
from tf_libra.autotune.tuner import Tuner
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.internal import formatting

# A `Tuner` that also yields `Postponed`.
PostponingTuner = Generator[Trial | Postponed, TrialResult | None, TuningResult]


class Postponement:
    """Count of postponed steps and of their seconds.

    Attributes:
        num_steps: number of postponed steps.
        reason: reason for the last of them.
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts with no postponed step.

        Args:
            budget: tuning's budget; as many steps and seconds again may be postponed.
            clock: returns seconds.
        """
        self._budget = budget
        self._clock = clock
        self._seconds = 0.0
        self.num_steps = 0
        self.reason = ""

    def clock(self) -> float:
        """Returns seconds on a clock that stands still during postponed steps."""
        return self._clock() - self._seconds

    @property
    def is_spent(self) -> bool:
        """True if no more steps may be postponed, so that tuning has to end."""
        budget = self._budget
        return self.num_steps >= budget.max_steps or self._seconds >= budget.max_seconds

    def run_step(
        self, trial: Trial | Postponed, reason: str = ""
    ) -> Generator[Trial | Postponed, TrialResult | None, TrialResult | None]:
        """Yields `trial` for one step; counts a step that is postponed or was interrupted."""
        start = self._clock()
        result = yield trial
        is_interrupted = result is not None and result.is_interrupted
        if is_interrupted or isinstance(trial, Postponed):
            self.num_steps += 1
            self._seconds += self._clock() - start
            self.reason = result.problem if result is not None and is_interrupted else reason
        return result

    def annotate(self, result: TuningResult) -> TuningResult:
        """Returns the result, with a note on the trials that were dropped if any were."""
        if not self.is_spent:
            return result
        note = (
            f"tuning ended before all trials: {self.reason} in {self.num_steps} steps"
            f" ({formatting.time(self._seconds)}). Stop the profiler session earlier, or start it"
            " once the step is settled"
        )
        plan = replace(result.plan, notes=(*result.plan.notes, note))
        return replace(result, plan=plan, notes=(*result.notes, note), is_complete=False)


def postpone_trials(
    make_tuner: Callable[[Postponement], Tuner],
    postponement: Postponement,
    find_conflict: Callable[[], str],
    log: Callable[[str], None] = lambda text: None,
) -> PostponingTuner:
    """Runs a tuner; yields `Postponed` while another profiler session is active.

    Args:
        make_tuner: makes a tuner with the postponement's clock, which ends when that is spent.
        postponement: counts the postponed steps; the tuner is not charged for them.
        find_conflict: returns why a step cannot be traced now; empty if it can.
        log: takes a line of text.
    """
    tuner = make_tuner(postponement)
    result: TrialResult | None = None
    while True:
        try:
            trial = tuner.send(result)
        except StopIteration as finished:
            return postponement.annotate(finished.value)
        result, before = None, postponement.num_steps
        while not postponement.is_spent:
            if reason := find_conflict():
                if postponement.num_steps == before:
                    log(f"tuning: postponed, since {reason}")
                yield from postponement.run_step(Postponed(), reason)
                continue
            if postponement.num_steps > before:
                log(f"tuning: resumed after {postponement.num_steps - before} postponed steps")
            found = yield from postponement.run_step(trial)
            if found is None or not found.is_interrupted:
                result = found
                break
            before = postponement.num_steps
