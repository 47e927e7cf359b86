"""Strategies of other kinds that may replace data parallelism, and which of them are eligible.

A strategy is eligible if its step computes the same variables and results. It says so itself, from
its trace, and then repeats one step of data parallelism, which is undone (`same_step.py`).
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tf_libra import config
from tf_libra.internal import formatting
from tf_libra.planning.data_parallel.auto import JOINT_RESULTS
from tf_libra.planning.one_worker import CLEARLY_SLOWER
from tf_libra.runtime import same_step
from tf_libra.runtime.family_choice import FamilyChoice
from tf_libra.runtime.family_trials import FAR_FASTER, FIRST, HOPELESS
from tf_libra.runtime.protocol import CandidateStep
from tf_libra.runtime.strategy_kinds import (
    KINDS,
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
        predicted: predicted steps as text, by name.
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
        self._allows_joint = JOINT_RESULTS in getattr(options.strategy, "allow", ())
        self.steps: dict[str, CandidateStep] = {}
        reason = _option_against(options)
        for name in _available(families):
            kind, strategy = resolve_strategy(name)
            if not self._allows_joint:
                strategy = dataclasses.replace(strategy, results="own")
            if reason:
                self._impossible[name] = reason
                continue
            own = {option.name for option in config.declared(kind.options) if not option.group}
            given = {key: getattr(options, key) for key in own - {"strategy", "sparse_as_dense"}}
            self._options[name] = kind, {**given, "strategy": strategy}
            try:
                self.steps[name] = self._make_step(name)
            except ValueError as error:
                self._impossible[name] = str(error)
        self.begin_job()

    def _make_step(self, name: str, **more: Any) -> CandidateStep:
        kind, given = self._options[name]
        assert kind.make_step is not None
        step: Any = kind.make_step(self._function, resolve_options(kind, {**given, **more}))
        step.is_method, step.is_tried = self._first.is_method, True
        made: CandidateStep = step
        return made

    def begin_job(self) -> None:
        """Begins a job, before any trial."""
        self.left_out = dict(self._impossible)
        self.predicted: dict[str, str] = {}
        self._accepted: set[str] = set()  # by their traces
        self._repeated: set[str] = set()  # that have repeated a step
        self._slow: set[str] = set()  # that are left out because they are slow
        self._largest_speedup = float("inf")  # of data parallelism over one worker, predicted
        self._usual = float("inf")  # seconds of a step of data parallelism

    @property
    def eligible(self) -> dict[str, CandidateStep]:
        """Steps of the strategies that have not been left out, by name."""
        return {name: step for name, step in self.steps.items() if name not in self.left_out}

    @property
    def num_others(self) -> int:
        """Number of strategies that may replace data parallelism once step times change."""
        return len(self.eligible.keys() | self._slow)

    def reconsider_slow(self) -> None:
        """Makes strategies that were left out as slow candidates again."""
        for name in self._slow:
            del self.left_out[name]
        self._accepted -= self._slow
        self._repeated -= self._slow
        self._slow = set()

    def _leave_out(self, name: str, reason: str, is_slow: bool = False) -> None:
        """Leaves out a strategy; a slow one until step times change."""
        self.left_out[name] = reason
        self._slow |= {name} if is_slow else set()
        self._log(f"{name} is left out of the trials: {reason}")

    def leave_out_failed(self, name: str, error: ValueError) -> None:
        """Leaves out a strategy whose step has failed on all ranks."""
        self._leave_out(name, last_line(str(error)))

    def leave_out_predicted(self) -> None:
        """Leaves out strategies whose plans are predicted to be far slower."""
        for name, step in self.eligible.items():
            seconds = step.predicted_seconds
            if seconds is None:
                continue
            self.predicted[name] = formatting.time(seconds)
            if seconds > FAR_FASTER * self._usual:
                usual = formatting.time(self._usual)
                reason = f"its step is predicted to take {formatting.time(seconds)}"
                self._leave_out(name, f"{reason}, and one of {FIRST} took {usual}", is_slow=True)

    # Checks.

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Leaves out strategies that would compute other weights, on all ranks alike."""
        other = self._reason_against()
        slow = {name: self._reason_slow(name) for name in self.eligible}
        mine: dict[str, str | None] = {}
        for name in self.eligible.keys() - self._accepted:
            mine[name] = slow[name] or other or self._rejects(name, args, kwargs)
        for rejected in self._first.exchange(mine):
            for name, reason in rejected.items():
                if reason is not None and name not in self.left_out:
                    self._leave_out(name, reason, is_slow=bool(slow[name]))
        self._accepted |= self.eligible.keys()

    def _rejects(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        _, num_ranks = self._first.rendezvous.place
        try:
            reason = self.steps[name].rejects(args, kwargs, num_ranks)
        except Exception as error:  # of the script, traced for the joint batch
            reason = f"{type(error).__name__}: {error}"
        return reason and last_line(reason)

    def _reason_slow(self, name: str) -> str:
        """Returns why a strategy is too slow, by predictions; empty if it may be fast."""
        conclusion = self._first.state.conclusion
        compared = None if conclusion is None else conclusion.compare_with_one_worker()
        if compared is None:
            return ""
        self._largest_speedup = compared.speedup
        kind, _ = self._options[name]
        if kind.trains_alone:
            self.predicted[name] = f"at most {formatting.time(compared.one_worker_seconds)}"
            if compared.speedup > HOPELESS:
                return f"it is predicted to be far slower: {compared.describe()}"
            return ""
        _, num_ranks = self._first.rendezvous.place
        if compared.speedup * CLEARLY_SLOWER > num_ranks:
            return f"{FIRST} hides its communication: {compared.describe()}"
        return ""

    def _reason_against(self) -> str:
        """Returns why no other strategy can go on; empty if one may."""
        if self._first.rendezvous.options.engine != "lanes":
            return "the engine is not lanes, which carry examples and results between ranks"
        if self._first.gathers_rows:
            return (
                "gradients are sparse, and an optimizer may apply them otherwise than dense ones;"
                " sparse_as_dense=True makes them dense under every strategy"
            )
        return ""

    def follow(self, choice: FamilyChoice, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Returns whether the choice of an earlier job, with its plan, fits this step."""
        name = choice.name
        if name != FIRST:
            kind, _ = self._options.get(name, (None, None))
            if kind is None or kind.plan_type is None or not choice.plan:
                return False
            plan = kind.plan_type.from_json(choice.plan)
            usual, self.steps[name] = self.steps[name], self._make_step(name, plan=plan)
            reason = self._reason_against() or self._rejects(name, args, kwargs)
            fits = not reason and self.steps[name].computation == choice.computation
            if not all(self._first.exchange(fits)):
                self.steps[name] = usual
                return False
            self._accepted.add(name)
            self._repeated.add(name)
        others = [one for one in self.eligible if one != name]
        self._slow |= {*others}
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
        undone, reason = None, ""
        try:
            undone = self._run_undone(name, args, kwargs)
        except ValueError as error:  # on all ranks
            reason = last_line(str(error))
        start = time.perf_counter()
        result = self._first.step(args, kwargs)
        usual = time.perf_counter() - start
        if undone is not None:
            reason = same_step.describe_difference(undone, result, self._allows_joint)
        reasons = [one for one in self._first.exchange(reason) if one]
        if reasons:
            self._leave_out(name, reasons[0])
        elif slow := self._time_repeated(name, usual, args, kwargs):
            self._leave_out(name, slow, is_slow=True)
        return result

    def _run_undone(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> same_step.UndoneStep:
        candidate = self.steps[name]
        return same_step.run_undone(
            partial(candidate.step, args, kwargs),
            candidate.synchronize_variables,
            candidate.bound_variables.values(),
        )

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
        kind, _ = self._options[name]
        everyone = self._first.exchange((self._largest_speedup > FAR_FASTER, usual))
        usual = max(seconds for _, seconds in everyone)
        self._usual = min(self._usual, usual)
        if not kind.trains_alone or not any(may_be_slow for may_be_slow, _ in everyone):
            return ""
        for _ in range(2):  # the first may be slow by chance
            undone = self._run_undone(name, args, kwargs)
            seconds = max(self._first.exchange(undone.seconds))
            if seconds <= FAR_FASTER * usual:
                return ""
        return f"a step took {formatting.time(seconds)}, one of {FIRST} {formatting.time(usual)}"


def last_line(reason: str) -> str:
    """Returns what an error says, without the lines of user code that AutoGraph puts before."""
    *_, last = reason.strip().splitlines()
    return last.strip().removeprefix("ValueError: ")


def _option_against(options: config.DataParallelOptions) -> str:
    """Returns why no strategy of another kind can take part; empty if it can."""
    if options.local_variables:
        return "local_variables has variables that ranks do not share"
    if options.shard_updates:
        return "shard_updates leaves slots of which ranks hold parts"
    if options.error_feedback:
        return "error_feedback has rounding errors of gradients that ranks exchange"
    return ""


def _available(families: Sequence[str]) -> Sequence[str]:
    """Returns names of strategies that may join trials; none if their system is not installed.

    Raises:
        ValueError: a name is unknown, or of a strategy that may not.
    """
    kinds = [kind for kind in KINDS.values() if kind.joins_trials]
    allowed = [name for kind in kinds for name in kind.strategies.by_name]
    for name in families if kinds else ():
        if name not in allowed:
            raise ValueError(f"families must be of {', '.join(allowed)}, got {name!r}")
    return families if kinds else ()
