"""Sequence of the trials of families: which of them has the next step, until one is chosen.

Data parallelism tunes, or is timed again. Then the others are checked, and repeat a step each,
measure for their plans, and all take turns. Those that are close to the fastest have final turns.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tf_libra.runtime.family_candidates import FamilyCandidates
from tf_libra.runtime.family_trials import (
    FINAL_STEPS,
    FIRST,
    MAX_MEASURED_PER_RANK,
    MAX_SECONDS,
    MAX_UNLIKE,
    MIN_ROUNDS,
    REFERENCE_STEPS,
    UNLIKE,
    UNTIMED,
    Turns,
    choose_fastest,
    combine_ranks,
    describe_unmeasured,
    find_close,
    most_strategies,
)
from tf_libra.runtime.protocol import TrainingStep
from tf_libra.runtime.training_step import TrainingFunction
from tf_libra.runtime.trial_clock import TrialClock


class NextStep(NamedTuple):
    """Strategy of the next step.

    Attributes:
        name: the strategy.
        is_timed: whether the step belongs to a turn.
        is_chosen: whether trials have ended, and training goes on with the strategy.
    """

    name: str
    is_timed: bool = False
    is_chosen: bool = False


class TrialSequence:
    """The first trials of a job, or others after step times have changed.

    Attributes:
        medians: measured steps, by name.
        source: clause about the job that has measured them; empty for this one.
        turns: turns of strategies.
        untimed: why the strategy is chosen by prediction, in a clause; empty if it is not.
        is_lasting: whether later jobs may rely on the choice.
        are_final: whether steps of turns run as after trials, without a way to undo them.
    """

    def __init__(
        self,
        first: TrainingFunction,
        candidates: FamilyCandidates,
        clock: TrialClock,
        log: Callable[[str], None],
        is_repeated: bool,
    ) -> None:
        """Begins before any trial.

        Args:
            first: the step under data parallelism.
            candidates: the other strategies.
            clock: budget of the trials.
            log: logs a message on rank 0.
            is_repeated: whether step times have changed since other trials.
        """
        self._first, self._candidates, self._clock, self._log = first, candidates, clock, log
        self._is_repeated = is_repeated
        candidates.reconsider_slow()
        clock.begin()
        self.medians: dict[str, float] = {}
        self.source = ""
        self.turns = Turns()
        self.untimed = ""
        self.is_lasting = True
        self.are_final = False
        self._is_checked = False
        self._num_unlike = 0  # steps whose arguments differ in kind between ranks
        self._plan_seconds: list[float] = []  # of steps under the plan of data parallelism
        self._num_measured: defaultdict[str, int] = defaultdict(int)  # steps of measurements
        self._has_measured_links = False

    @property
    def _members(self) -> dict[str, TrainingStep]:
        """Steps of the strategies that take part, by name."""
        return {FIRST: self._first, **self._candidates.eligible}

    @property
    def fastest(self) -> str:
        """The fastest strategy that takes part."""
        seconds = self._seconds
        return choose_fastest(seconds) if FIRST in seconds else FIRST

    @property
    def _seconds(self) -> dict[str, float]:
        """Measured steps of strategies that take part: of an earlier job, not all do."""
        return {name: self.medians[name] for name in self._members if name in self.medians}

    # Limits, which all ranks exchange.

    @property
    def limits(self) -> tuple[bool, bool]:
        """Returns whether turns, and whether all trials, have taken too long on this rank."""
        return self.turns.total_seconds > MAX_SECONDS, self._clock.seconds_left() < 0

    def end_at_limits(self, everyone: Sequence[Sequence[bool]]) -> None:
        """Ends turns after the present round, or now, if a rank is at its limits."""
        if any(is_slow for is_slow, _ in everyone):
            self.turns.end_after_round()
        if any(is_late for _, is_late in everyone):
            self._end_late()

    def _end_late(self) -> None:
        """Lets only strategies be chosen that are timed, or predicted if fewer than two are."""
        timed = [name for name, seconds in self.turns.seconds.items() if seconds]
        self.turns.end()
        if self.medians:  # of other turns, which are known
            return
        if len(timed) < 2:
            self.untimed = self._clock.describe_late()
            timed = self._candidates.verified
        self._candidates.leave_out_unless(timed, UNTIMED, is_slow=True)

    def add_unlike(self) -> bool:
        """Counts a step for which ranks have unlike arguments; returns whether trials end so."""
        self._num_unlike += 1
        if self._num_unlike < MAX_UNLIKE:
            return False
        self._candidates.leave_out_unless((), UNLIKE)
        return True

    # Steps.

    def next_repeated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Returns the strategy that repeats the next step; None if none does.

        Args:
            args: of the step, with which strategies are checked first.
            kwargs: of the step.
        """
        if self.turns.have_begun or self.untimed or not self._is_reference_timed:
            return None
        if not self._is_checked:
            self._is_checked = True
            times = self._plan_seconds, self._is_repeated, self._clock.seconds_left
            self._candidates.check(args, kwargs, *times)
        return self._candidates.next_repeated

    @property
    def _is_reference_timed(self) -> bool:
        """Returns whether data parallelism, with which others are compared, has been measured."""
        is_timed = not self._is_repeated or len(self._plan_seconds) >= REFERENCE_STEPS
        return self._first.settled and is_timed

    def next_step(self) -> NextStep:
        """Returns the strategy of the next step, which no strategy repeats."""
        if self.untimed:
            return self._predicted()
        if not self.turns.have_begun:
            if not self._is_reference_timed:
                return NextStep(FIRST)
            if self._is_short:
                return self._choose_without_turns()
            most = MAX_MEASURED_PER_RANK * self._first.rendezvous.rank_and_size[1]
            for name, step in self._members.items():
                if step.settled:
                    continue
                if self._num_measured[name] < most:
                    self._num_measured[name] += 1
                    return NextStep(name)
                self._candidates.leave_out(name, describe_unmeasured(most))
            self._candidates.leave_out_predicted()
            if self._is_short:
                return self._choose_without_turns()
            self._candidates.leave_out_surplus(most_strategies(self._clock.steps_left) - 1)
            if len(self._members) > 1:
                steps_left = max(self._clock.steps_left - FINAL_STEPS, 0)
                self.turns = Turns(tuple(self._members), steps_left)
        elif not self.turns.next:
            self._end_turns()
        if self.turns.next:
            return NextStep(self.turns.next, is_timed=True)
        return NextStep(self.fastest, is_chosen=True)

    def record(self, seconds: float, is_timed: bool, is_under_plan: bool) -> None:
        """Records a step.

        Args:
            seconds: seconds that it has taken.
            is_timed: see `NextStep`.
            is_under_plan: whether it was one of data parallelism under its plan.
        """
        if is_under_plan:
            self._plan_seconds.append(seconds)
        if is_timed:
            self.turns.record(seconds)

    def _end_turns(self) -> None:
        """Takes the times of turns, and begins others if they contradict predictions."""
        # Those of all turns count, not of the few of other turns that have ended early.
        are_first = not (self._has_measured_links or self.are_final)
        if are_first or not self.turns.have_ended_early:
            self.medians |= combine_ranks(self._first.exchange(self.turns.seconds))
        if self._begin_final_turns():
            return
        if self._has_measured_links or self._clock.is_short or not self._begin_turns_again():
            self._candidates.forecast.update([*self._candidates.eligible])

    def _begin_final_turns(self) -> bool:
        """Returns whether the fastest strategies have final turns, which is once."""
        if self.are_final or self.turns.have_ended_early or self.turns.are_slow:
            return False
        seconds, fastest = self._seconds, self.fastest
        if FIRST not in seconds:
            return False
        names = [fastest, *find_close(seconds, fastest)]
        names = names[: most_strategies(self._clock.steps_left)]
        if len(names) < 2:
            return False
        self.are_final = True
        self.turns = Turns(names, self._clock.steps_left, MIN_ROUNDS)
        return True

    def _begin_turns_again(self) -> bool:
        """Returns whether strategies have other turns, with links measured again, which is once."""
        candidates, seconds_left = self._candidates, self._clock.seconds_left()
        eligible = [*candidates.eligible]
        names = candidates.forecast.contradicted(eligible, self.medians, seconds_left)
        if not names:
            return False
        turns = tuple(dict.fromkeys((self.fastest, *names)))
        if len(turns) > most_strategies(self._clock.steps_left):
            return False
        self._has_measured_links = True
        for name in names:
            self._log(f"{name} contradicts its prediction, and links are measured again")
            candidates.steps[name].plan_again(with_layers=False)
        self.turns = Turns(turns, self._clock.steps_left)
        return True

    @property
    def _is_short(self) -> bool:
        """True if too few steps are left for turns of two strategies."""
        return len(self._members) > 1 and self._clock.is_short

    def _choose_without_turns(self) -> NextStep:
        self.untimed = self._clock.describe_short()
        return self._predicted()

    def _predicted(self) -> NextStep:
        """Returns the strategy whose predicted step is the shortest; FIRST without any."""
        self.is_lasting = False  # a later job may have time for trials
        seconds = self._candidates.forecast.seconds_of(self._candidates.verified)
        self._candidates.leave_out_unless([*seconds], UNTIMED, is_slow=True)
        if len(self._members) < 2:
            self.untimed = ""
        name, *_ = self._first.exchange(choose_fastest(seconds) if len(seconds) > 1 else FIRST)
        return NextStep(name, is_chosen=True)
