"""A training step under data parallelism or a strategy of another kind, whichever is faster.

Data parallelism tunes first, as without the others. Then each other strategy repeats one of its
steps, and is left out if variables or results differ (`family_candidates.py`). The others have
turns of steps that train and are timed, and the fastest goes on, until step times change for good.
All strategies train the same variables, which each synchronizes when its turn begins
(`sharded_variables.py`).
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from tf_libra import config
from tf_libra.autotune import Phase, PlanSource
from tf_libra.capture.gradient_weight import is_weighted
from tf_libra.internal import log_utils
from tf_libra.planning.family_comparison import FamilyComparison
from tf_libra.reporting.families import describe_families
from tf_libra.reporting.records.record_types import Record
from tf_libra.runtime.cached_choice import load_choice, store_choice
from tf_libra.runtime.family_candidates import FamilyCandidates
from tf_libra.runtime.family_choice import FamilyWatch
from tf_libra.runtime.family_options import describe_error
from tf_libra.runtime.family_report import compare_families, record_families, show_families
from tf_libra.runtime.family_trials import FIRST, SEVERAL, count_trials
from tf_libra.runtime.protocol import CandidateStep, TrialError, TuningState
from tf_libra.runtime.same_step import kinds_of_arguments
from tf_libra.runtime.training_step import TrainingFunction
from tf_libra.runtime.trial_clock import TrialClock
from tf_libra.runtime.trial_sequence import TrialSequence


class FamilyStep:
    """See `TrainingStep`.

    Attributes:
        error_feedback: that of data parallelism.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: config.DataParallelOptions,
        first: TrainingFunction,
        families: Sequence[str],
    ) -> None:
        """Runs nothing before the first step.

        Args:
            function: a `tf.function` or a plain function.
            options: the user's options of data parallelism.
            first: the step under data parallelism.
            families: names of the other strategies.

        Raises:
            ValueError: there is no such strategy, or it cannot be compared with data parallelism.
        """
        self._first, self._options = first, options
        self._clock = TrialClock(options)
        self.error_feedback = first.error_feedback
        self._candidates = FamilyCandidates(function, options, first, families, self._log)
        self._begin()

    def _begin(self) -> None:
        """Begins a job, before any trial."""
        self._number_steps_from(0)
        self._clock.begin_job()
        self._candidates.begin_job()
        self._is_cache_read = False
        self._watch = FamilyWatch(self._options.tuning.retune_overhead)
        self._chosen = FIRST
        self._begin_trials(is_repeated=False)

    def _begin_trials(self, is_repeated: bool) -> None:
        """Begins trials, the first of a job, or others after step times have changed."""
        self._trials = TrialSequence(
            self._first, self._candidates, self._clock, self._log, is_repeated
        )
        self._families: FamilyComparison | None = None  # once one of them is chosen
        self._active = FIRST
        self._is_chosen = False

    def _number_steps_from(self, number: int) -> None:
        """Numbers the next step of every strategy after a step, as the script counts them."""
        for step in self._every_step:
            step.step_number = number

    # The user's interface.

    @property
    def is_method(self) -> bool:
        """True if the first argument of each step is the object of a method."""
        return self._first.is_method

    @is_method.setter
    def is_method(self, value: bool) -> None:
        for step in self._every_step:
            step.is_method = value

    @property
    def _every_step(self) -> list[TrainingFunction | CandidateStep]:
        return [self._first, *self._candidates.steps.values()]

    @property
    def _step(self) -> TrainingFunction | CandidateStep:
        return self._first if self._active == FIRST else self._candidates.steps[self._active]

    @property
    def state(self) -> TuningState:
        """Phase of the strategy of the last step, "race" while turns are timed; tuning's result."""
        is_racing = self._trials.turns.have_begun and not self._is_chosen
        phase = Phase.RACE if is_racing else self._step.state.phase
        return dataclasses.replace(self._first.state, phase=phase)

    @property
    def plan(self) -> Any:
        """Plan of the strategy of the last step."""
        return self._step.plan

    @property
    def settled(self) -> bool:
        """Returns whether trials and measurements have ended; the same step on every rank."""
        return (self._is_chosen or self._is_alone) and self._step.settled

    @property
    def runs_several(self) -> bool:
        """See `TrainingStep`."""
        return self._chosen == FIRST

    @property
    def _is_alone(self) -> bool:
        return self._first.state.phase is Phase.PASS_THROUGH

    def explain(self) -> str:
        """Returns the facts known so far, as text of at most 100 columns."""
        families = self._with_cost(self._families or self._compare_families())
        return "\n".join([*describe_families(families, self._remark), self._step.explain()])

    @property
    def _remark(self) -> str:
        """Clause that follows the comparison with one worker."""
        if not self._is_chosen:
            return ""
        source = self._trials.source
        trials = f"in interleaved steps{source}; " if self._trials.medians else ""
        return f"{trials}active: {self._chosen}"

    def _compare_families(self) -> FamilyComparison:
        trials, is_chosen = self._trials, self._is_chosen
        chosen, untimed = (self._chosen, trials.untimed) if is_chosen else ("", "")
        return compare_families(self._first, self._candidates, trials.medians, chosen, untimed)

    def _with_cost(self, families: FamilyComparison) -> FamilyComparison:
        cost = None if self._is_alone else self._clock.cost
        return dataclasses.replace(families, trials=cost)

    def record(self, make_record: Callable[[str, int], Record]) -> None:
        """See `TrainingStep`."""
        self._step.record(make_record)

    def check_variables(self) -> None:
        """See `TrainingStep`."""
        self.synchronize_variables()
        self._first.check_variables()

    def synchronize_variables(self) -> None:
        """See `TrainingStep`."""
        for step in self._every_step:
            step.synchronize_variables()

    def close(self) -> None:
        """See `TrainingStep`."""
        for step in self._every_step:
            step.close()

    # Steps.

    def step(self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int = 1) -> Any:
        """See `TrainingStep`. Several steps in one graph are no trial."""
        num_trials, start = self._clock.num_trials, time.perf_counter()
        result = self._run_step(args, kwargs, num_steps)
        is_trial = self._clock.num_trials > num_trials
        self._clock.record(time.perf_counter() - start, num_steps, is_trial)
        if self._is_chosen and self._clock.is_due():
            self._record_families()
        return result

    def _run_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int) -> Any:
        if self._first.rendezvous.is_over:
            self._first.leave_job()
            self._begin()
        if self._is_alone:
            return self._first.step(args, kwargs, num_steps)
        may_be_other = self._watch.is_due or not (self._is_chosen and self._chosen == FIRST)
        values = self._first.chosen_values(args, kwargs) if may_be_other and num_steps == 1 else []
        if values is None:
            return self._first.step(args, kwargs)  # perhaps on this rank alone
        self._number_steps_from(max(step.step_number for step in self._every_step))
        self._active = FIRST
        if is_weighted():  # no other strategy trains while ranks have no batch
            return self._first.step(args, kwargs, num_steps)
        if num_steps != 1:
            return self._run_several(args, kwargs, num_steps)
        if not self._is_cache_read and self._first.state.origin is PlanSource.CACHED:
            self._use_cached(args, kwargs)
        if not self._compare_ranks(args, kwargs, values):
            return self._first.step(args, kwargs)
        if self._is_chosen and not self._has_drifted():
            return self._run_chosen(args, kwargs)
        return self._run_trial(args, kwargs)

    def _compare_ranks(self, args: Any, kwargs: dict[str, Any], values: list[str]) -> bool:
        """Returns whether arguments of all ranks are of the same kind, if that may matter.

        Only data parallelism trains others, such as the last batches of an epoch. The others would
        wait for a rank that traces the step again. Trials end for all ranks if they do for one.
        """
        has_begun = self._trials.turns.have_begun or self._first.settled
        if (self._chosen == FIRST) if self._is_chosen else not has_begun:
            return True
        kinds = [*kinds_of_arguments((args, kwargs)), *values]
        everyone = self._first.exchange_in_step([kinds, *self._trials.limits])
        if not self._is_chosen:
            self._trials.end_at_limits([limits for _, *limits in everyone])
        if all(kinds == everyone[0][0] for kinds, *_ in everyone):
            return True
        if not self._is_chosen and self._trials.add_unlike():  # trials would never end
            self._choose(FIRST)
        return False

    def _run_several(self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int) -> Any:
        """Runs a graph of several steps, which data parallelism alone has.

        It is no trial: if step times have changed, the single steps that follow are.
        """
        if not self._is_chosen and not self._trials.turns.have_begun:  # none may follow
            self._candidates.leave_out_unless((), SEVERAL)
            self._is_chosen, self._chosen = True, FIRST
        if self._is_chosen and self._chosen == FIRST and not self._has_drifted():
            return self._run_chosen(args, kwargs, num_steps)
        return self._first.step(args, kwargs, num_steps)

    def _run_chosen(self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int = 1) -> Any:
        self._active = self._chosen
        is_steady, number = self._step.settled, self._step.step_number
        start = time.perf_counter()
        result = self._run_active(args, kwargs, num_steps)
        if is_steady and self._step.step_number != number:  # it has trained
            self._watch.record_step((time.perf_counter() - start) / num_steps, num_steps)
        return result

    def _run_active(self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int = 1) -> Any:
        """Runs a step of the active strategy, or of data parallelism if it cannot run."""
        if self._active == FIRST:
            return self._first.step(args, kwargs, num_steps)
        name = self._active
        are_final = self._is_chosen or self._trials.are_final
        self._candidates.steps[name].is_undoable = not are_final
        try:
            result = self._step.step(args, kwargs)
        except TrialError as error:
            self._candidates.leave_out(name, describe_error(error))
        else:
            self._first.count_other_step(name)
            return result
        self._trials.turns.leave_out(name)
        if self._is_chosen:
            self._trials.untimed = ""
            self._choose(self._trials.fastest)
        self._active = FIRST
        return self._first.step(args, kwargs)

    def _has_drifted(self) -> bool:
        """Begins other trials if step times have changed, as rank 0 decides."""
        num_others = self._candidates.num_others
        if not num_others or not self._watch.is_due:
            return False
        verdict = self._watch.has_drifted(count_trials(1 + num_others))
        has_drifted, *_ = self._first.exchange(verdict)
        if has_drifted:
            self._log("step times have changed, and strategies are compared again")
            self._candidates.plan_again()
            self._begin_trials(is_repeated=True)
        return bool(has_drifted)

    def _run_trial(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._clock.count_step()
        repeated = self._trials.next_repeated(args, kwargs)
        if repeated is not None:
            return self._candidates.repeat(repeated, args, kwargs)
        name, is_timed, is_chosen = self._trials.next_step()
        self._active = name
        if is_chosen:
            self._choose(name)
        is_under_plan = name == FIRST and self._first.state.phase is Phase.RUN
        start = time.perf_counter()
        result = self._run_active(args, kwargs)
        seconds = time.perf_counter() - start
        self._watch.record_trial(seconds)
        if name != FIRST:
            seconds -= self._candidates.steps[name].undo_seconds
        has_run = self._active == name  # it has not failed
        self._trials.record(seconds, is_timed and has_run, is_under_plan)
        return result

    def _choose(self, name: str) -> None:
        """Goes on with a strategy."""
        self._active, self._chosen, self._is_chosen = name, name, True
        families = self._compare_families()
        self._show_families(families)
        self._watch.on_chosen(self._trials.medians.get(name))
        if self._trials.is_lasting:
            store_choice(self._first, families, self._candidates.steps.get(name))

    def _show_families(self, families: FamilyComparison) -> None:
        self._families = families
        self._clock.end_trials()
        show_families(self._first, families, self._remark, bool(self._trials.medians))

    def _record_families(self) -> None:
        """Writes the families with what trials have cost so far."""
        if self._families is not None:
            families = self._with_cost(self._families)
            record_families(self._first, families, max(self._clock.num_steps, 1))

    def _use_cached(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Goes on with the strategy that has won the trials of an earlier job."""
        self._is_cache_read = True
        choice = load_choice(self._first)
        if choice is None or not self._candidates.follow(choice, args, kwargs):
            return
        self._trials.source = " of an earlier job"
        self._trials.medians = choice.measured_seconds
        self._active = self._chosen = choice.name
        self._is_chosen = True
        self._watch.on_chosen(self._trials.medians.get(choice.name))
        self._show_families(choice.families)

    def _log(self, message: str) -> None:
        if self._first.rendezvous.rank_and_size[0] == 0:
            log_utils.logger(0).info("strategies: %s", message)
