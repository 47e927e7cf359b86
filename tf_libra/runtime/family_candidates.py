"""Strategies of other kinds that may replace data parallelism, and which of them are eligible.

A strategy is eligible if its step computes the same variables and results. It says so itself, from
its trace, and then repeats one step of data parallelism, which is undone (`same_step.py`).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_libra import config
from tf_libra.internal import formatting
from tf_libra.planning.allowed_differences import JOINT_RESULTS
from tf_libra.runtime import repeated_step
from tf_libra.runtime.family_choice import FamilyChoice
from tf_libra.runtime.family_forecast import FamilyForecast
from tf_libra.runtime.family_options import (
    available_families,
    describe_error,
    job_against,
    last_line,
    rows_against,
)
from tf_libra.runtime.family_prediction import describe_slow
from tf_libra.runtime.family_trials import FAR_FASTER, FIRST, SURPLUS
from tf_libra.runtime.protocol import CandidateStep, TrialError
from tf_libra.runtime.strategy_kinds import (
    StrategyKind,
    resolve_options,
    resolve_strategy,
)
from tf_libra.runtime.training_step import TrainingFunction


class FamilyCandidates:
    """Candidates of one training function.

    Attributes:
        steps: steps of the strategies that these options allow, by name.
        left_out: reasons of strategies that do not take part, by name.
        slow: names of strategies that are left out because they are slow.
        forecast: predictions of their steps.
        arguments: arguments that predictions chose, by name.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: config.DataParallelOptions,
        first: TrainingFunction,
        families: Sequence[str],
        log: Callable[[str], None],
    ) -> None:
        """Makes the steps; nothing runs.

        Args:
            function: a `tf.function` or a plain function.
            options: the user's options of data parallelism.
            first: the step under data parallelism.
            families: names of the strategies.
            log: logs a message on rank 0.

        Raises:
            ValueError: there is no such strategy, or it cannot be compared with data parallelism.
        """
        self._function, self._first, self._log = function, first, log
        self._options: dict[str, tuple[StrategyKind, dict[str, Any]]] = {}
        self._impossible: dict[str, str] = {}  # reasons, by strategy
        self.arguments: dict[str, dict[str, Any]] = {}
        self._followed = ""  # strategy whose step follows the plan of an earlier job
        self._has_logdir = options.logdir is not None
        self._saves_layers = False  # for `tf-libra compare`, if a rank has a log directory
        self._allow = getattr(options.strategy, "allow", ())
        self._allows_joint = JOINT_RESULTS in self._allow
        self.steps: dict[str, CandidateStep] = {}
        reason = options.family_conflict
        for name in available_families(families):
            kind, strategy = resolve_strategy(name)
            if not self._allows_joint:
                strategy = dataclasses.replace(strategy, results="own")
            if reason:
                self._impossible[name] = reason
                continue
            own = {option.name for option in config.declared(kind.options) if not option.group}
            given = {key: getattr(options, key) for key in own - {"strategy"}}
            self._options[name] = kind, {**given, "strategy": strategy}
            try:
                self.steps[name] = self._make_step(name)
            except ValueError as error:
                self._impossible[name] = str(error)
        self.begin_job()

    def _make_step(self, name: str, **more: Any) -> CandidateStep:
        kind, given = self._options[name]
        assert kind.make_step is not None
        made: Any = kind.make_step(self._function, resolve_options(kind, {**given, **more}))
        step: CandidateStep = made
        step.is_method, step.is_tried = self._first.is_method, True
        return step

    def begin_job(self) -> None:
        """Begins a job, before any trial."""
        # A followed plan, and chosen arguments, are for the ranks of the last job.
        for name in {self._followed, *self.arguments} - {""}:
            self.steps[name] = self._make_step(name)
        self._followed, self.arguments = "", {}
        self.left_out = dict(self._impossible)
        self.slow = set[str]()
        kinds = {name: (kind, given["strategy"]) for name, (kind, given) in self._options.items()}
        self.forecast = FamilyForecast(self._first, self.steps, kinds)
        # By their traces, and by a repeated step.
        self._accepted, self._repeated = set[str](), set[str]()
        self._scales: dict[str, repeated_step.ScaleEvidence] = {}

    @property
    def eligible(self) -> dict[str, CandidateStep]:
        """Steps of the strategies that have not been left out, by name."""
        return {name: step for name, step in self.steps.items() if name not in self.left_out}

    @property
    def names(self) -> list[str]:
        """Names of all strategies, those that options rule out last."""
        return [*dict.fromkeys((*self.steps, *self._impossible))]

    @property
    def alone(self) -> str | None:
        """The strategy that trains the joint batch on one rank; None if there is none."""
        return next((name for name in self.steps if self._kind(name).trains_alone), None)

    @property
    def verified(self) -> list[str]:
        """Names of the strategies that have repeated a step, and compute the same."""
        return [name for name in self.eligible if name in self._repeated]

    @property
    def num_others(self) -> int:
        """Number of strategies that may replace data parallelism once step times change."""
        return len(self.eligible.keys() | self.slow)

    def reconsider_slow(self) -> None:
        """Makes strategies that were left out as slow candidates again."""
        for name in self.slow:
            del self.left_out[name]
        self._accepted -= self.slow
        self._repeated -= self.slow
        self.slow = set()
        self.forecast.usual_seconds = math.inf

    def plan_again(self) -> None:
        """Lets strategies be predicted, and planned, with layers and links as they are now."""
        for step in self.steps.values():
            step.plan_again(with_layers=True)
        self.forecast.forget()

    def leave_out(self, name: str, reason: str, is_slow: bool = False) -> None:
        """Leaves out a strategy; a slow one until step times change."""
        self.left_out[name] = reason
        self.slow |= {name} if is_slow else set()
        self._log(f"{name} is left out of the trials: {reason}")

    def leave_out_unless(self, names: Sequence[str], reason: str, is_slow: bool = False) -> None:
        """Leaves out all strategies except some."""
        for name in self.eligible:
            if name not in names:
                self.leave_out(name, reason, is_slow)

    def leave_out_predicted(self) -> None:
        """Leaves out strategies whose plans are predicted to be far slower."""
        self.forecast.update([*self.eligible])
        for name in self.eligible:
            seconds, usual_seconds = (
                self.forecast.seconds_under_plan(name),
                self.forecast.usual_seconds,
            )
            if seconds is not None and seconds > FAR_FASTER * usual_seconds:
                usual = formatting.time(usual_seconds)
                reason = f"its step is predicted to take {formatting.time(seconds)}"
                self.leave_out(name, f"{reason}, and one of {FIRST} took {usual}", is_slow=True)

    def leave_out_surplus(self, most: int) -> None:
        """Leaves out the strategies with the slowest predictions, except `most` others."""
        ranked = sorted(self.eligible, key=lambda name: self.forecast.predicted.get(name, math.inf))
        for name in ranked[most:]:
            self.leave_out(name, SURPLUS, is_slow=True)

    # Checks.

    def check(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        plan_seconds: Sequence[float],
        is_repeated: bool,
        seconds_left: Callable[[], float],
    ) -> None:
        """Leaves out strategies that would be slow, or compute other weights, on all ranks.

        Args:
            args: of the step.
            kwargs: of the step.
            plan_seconds: seconds of steps under the plan of data parallelism, on this rank.
            is_repeated: whether step times have changed since tuning.
            seconds_left: returns the seconds in which trials may go on.
        """
        # The first step under a plan is traced for it. Ranks may have different log directories.
        everyone = self._first.exchange([list(plan_seconds[1:]), self._has_logdir])
        self._saves_layers = any(has_logdir for _, has_logdir in everyone)
        self.forecast.refer([seconds for seconds, _ in everyone], is_repeated)
        slow = {name: self.forecast.describe_slow(name) for name in self.eligible}
        self._leave_out_everywhere(dict.fromkeys(slow, job_against(self._first)))
        self._leave_out_everywhere(slow, are_slow=True)
        alone = [name for name in self._unchecked if self._kind(name).trains_alone]
        rejected = {name: self._reason_to_reject(name, args, kwargs) for name in alone}
        self._leave_out_everywhere(rejected)
        others = [name for name in self._unchecked if name not in alone]
        reasons = {name: self._rows_against(name, args, kwargs) for name in others}
        self._leave_out_everywhere(reasons)
        self._predict(args, kwargs)
        self._leave_out_late(seconds_left())
        others = [name for name in self._unchecked if name not in alone]
        self._leave_out_everywhere({name: self._rejects(name, args, kwargs) for name in others})
        self._accepted |= self.eligible.keys()

    @property
    def _unchecked(self) -> list[str]:
        return [name for name in self.eligible if name not in self._accepted]

    def _kind(self, name: str) -> StrategyKind:
        return self._options[name][0]

    def _leave_out_everywhere(
        self, reasons: Mapping[str, str | None], are_slow: bool = False
    ) -> None:
        """Leaves out strategies for which a rank has a reason; all ranks call it."""
        for rejected in self._first.exchange(dict(reasons)):
            for name, reason in rejected.items():
                if reason and name not in self.left_out:
                    self.leave_out(name, reason, is_slow=are_slow)

    def _predict(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Leaves out strategies whose steps are predicted to be slower, on all ranks alike."""
        forecast, alone = self.forecast, self.alone
        names = [name for name in self.eligible if self._kind(name).predict is not None]
        if alone is None or forecast.reference is None:
            return
        if not names and (alone in self.left_out or not self._saves_layers):
            return
        is_possible = alone not in self.left_out or alone in self.slow
        if alone in self.slow and not self.steps[alone].computation:
            self._rejects(alone, args, kwargs)  # its trace tells the memory of the joint batch
        exceeds_memory = any(self._first.exchange(self.steps[alone].exceeds_memory))
        if not is_possible and not exceeds_memory:
            # What one rank cannot compute, stages cannot either.
            self._leave_out_everywhere(dict.fromkeys(names, self.left_out[alone]))
            return
        # Stages have dense gradients, which one rank may not have.
        measured = names[0] if names and self.steps[alone].use_of_rows == "" else alone
        measures_joint = is_possible and not exceeds_memory
        reason = forecast.measure(measured, args, kwargs, measures_joint, may_repeat=bool(names))
        if reason:
            self._leave_out_everywhere(dict.fromkeys(names, reason))
            return
        found = forecast.predict(self.arguments)
        self._leave_out_everywhere({name: found[name].problem for name in names})
        if measures_joint:  # else microbatches have to fit into memory, and fewer may not
            self._complete({name: found[name].arguments for name in self._unchecked})
        seconds = forecast.predicted
        tried = {name: seconds[name] for name in self.eligible if name in seconds}
        if tried.keys() & {*names}:
            slow = describe_slow(tried, forecast.reference.compared.step_seconds, alone)
            self._leave_out_everywhere(slow, are_slow=True)

    def _complete(self, arguments: Mapping[str, Mapping[str, Any]]) -> None:
        """Gives strategies the arguments that predictions chose, equal on all ranks."""
        chosen = self._first.exchange({name: dict(each) for name, each in arguments.items()})[0]
        for name, values in chosen.items():
            if values:
                strategy = dataclasses.replace(self._options[name][1]["strategy"], **values)
                self.steps[name] = self._make_step(name, strategy=strategy)
                self.arguments[name] = values

    def _leave_out_late(self, seconds_left: float) -> None:
        """Leaves out strategies whose plans need more time to measure than there is."""
        names = [name for name in self.eligible if self._kind(name).predict is not None]
        if self.forecast.reference is None or not names:
            return
        late = self.forecast.reference.describe_late(seconds_left, len(names))
        self._leave_out_everywhere(dict.fromkeys(names, late), are_slow=True)

    def _rows_against(self, name: str, args: Any, kwargs: Any) -> str:
        kind, alone, use_of_rows = self._kind(name), self.alone, None
        if self._first.gathers_rows and alone is not None and not kind.trains_alone:
            if self.steps[alone].use_of_rows is None:  # it is slow, and has not been traced
                self._rejects(alone, args, kwargs)
            use_of_rows = self.steps[alone].use_of_rows
        return rows_against(self._first, kind, use_of_rows)

    def _reason_to_reject(self, name: str, args: Any, kwargs: Any) -> str | None:
        return self._rows_against(name, args, kwargs) or self._rejects(name, args, kwargs)

    def _rejects(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        _, num_ranks = self._first.rendezvous.rank_and_size
        step = self.steps[name]
        step.share_traces(self.steps[self.alone or next(iter(self.steps))])
        try:
            reason = step.rejects(args, kwargs, num_ranks, self._allow)
        except Exception as error:  # of the script, traced for the joint batch
            reason = describe_error(error)
        return reason and last_line(reason)

    def follow(self, choice: FamilyChoice, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Returns whether the choice of an earlier job, with its plan, fits this step."""
        name = choice.name
        if name != FIRST:
            if name not in self.eligible or not choice.plan:
                return False
            usual, plan_type = self.steps[name], self._kind(name).plan_type
            if plan_type is not None:  # else it plans again before its first step
                plan = plan_type.from_json(choice.plan)
                self.steps[name] = self._make_step(name, plan=plan)
            reason = job_against(self._first) or self._reason_to_reject(name, args, kwargs)
            fits = not reason and self.steps[name].computation == choice.computation
            if not all(self._first.exchange(fits)):
                self.steps[name] = usual
                return False
            self._followed = name
            self._accepted.add(name)
            self._repeated.add(name)
        others = [family for family in self.eligible if family != name]
        self.slow |= {*others}
        self.left_out |= dict.fromkeys(others, f"trials of an earlier job chose {name}")
        return True

    # A repeated step.

    @property
    def next_repeated(self) -> str | None:
        """A strategy that has not repeated a step; None if all have."""
        return next((name for name in self.eligible if name not in self._repeated), None)

    def repeat(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trains a step by data parallelism, after another strategy has run and undone it."""
        self._repeated.add(name)
        candidate = self.steps[name]
        found = repeated_step.repeat(self._first, candidate, args, kwargs, self._allows_joint)
        evidence = self._scales.setdefault(name, repeated_step.ScaleEvidence())
        reason = found.reason or evidence.add(found.scales)
        if not (reason or evidence.is_complete):
            self._repeated.discard(name)  # another step shows more
            return found.result
        del self._scales[name]
        if reason:
            self.leave_out(name, reason)
            return found.result
        try:
            slow = self._time_repeated(name, found.seconds, args, kwargs)
        except TrialError as error:
            self.leave_out(name, describe_error(error))
        else:
            if slow:
                self.leave_out(name, slow, is_slow=True)
        return found.result

    def _time_repeated(self, name: str, usual: float, args: Any, kwargs: Any) -> str:
        """Returns why trials of a strategy would only cost time; empty if they may pay.

        Predictions only bound the step of one worker, which takes less than N times as long if
        computation does not grow with the batch. So steps that may be far slower are timed.

        Args:
            name: the strategy.
            usual: seconds of a step of data parallelism on this rank.
            args: of the step.
            kwargs: of the step.
        """
        forecast = self.forecast
        everyone = self._first.exchange((forecast.largest_speedup > FAR_FASTER, usual))
        usual = max(seconds for _, seconds in everyone)
        forecast.usual_seconds = min(forecast.usual_seconds, usual)
        if not self._kind(name).trains_alone or not any(may_be_slow for may_be_slow, _ in everyone):
            return ""
        for _ in range(2):  # the first may be slow by chance
            undone = repeated_step.run_undone(self._first, self.steps[name], args, kwargs)
            seconds = max(self._first.exchange(undone.seconds))
            if seconds <= FAR_FASTER * usual:
                return ""
        return f"a step took {formatting.time(seconds)}, one of {FIRST} {formatting.time(usual)}"
