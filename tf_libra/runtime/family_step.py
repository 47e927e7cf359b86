"""A training step under data parallelism or a strategy of another kind, whichever is faster.

Data parallelism tunes first, as without the others. Then each other strategy repeats one of its
steps, and is left out if variables or results differ (`same_step.py`). The others have turns of
steps that train and are timed, and the fastest goes on. All strategies train the same variables,
which each synchronizes when its turn begins (`sharded_variables.py`).
"""

import dataclasses
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tf_libra import config
from tf_libra.autotune import Phase
from tf_libra.capture.gradient_weight import is_joined
from tf_libra.internal import formatting, log_utils
from tf_libra.planning.data_parallel.auto import JOINT_RESULTS
from tf_libra.reporting.records.record_types import Record
from tf_libra.runtime import same_step
from tf_libra.runtime.family_trials import (
    FAR_FASTER,
    HOPELESS,
    STEPS_PER_TURN,
    choose_fastest,
    combine_ranks,
    make_schedule,
)
from tf_libra.runtime.protocol import CandidateStep, TrainingStep, TuningState
from tf_libra.runtime.strategy_kinds import KINDS, resolve_options, resolve_strategy
from tf_libra.runtime.training_step import TrainingFunction

_FIRST = "data parallelism"


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
        self._first = first
        self.error_feedback = first.error_feedback
        self._candidates: dict[str, CandidateStep] = {}
        self._impossible: dict[str, str] = {}  # reasons, by strategy
        reason = _option_against(options)
        self._allows_joint = JOINT_RESULTS in getattr(options.strategy, "allow", ())
        for name in _available(families):
            kind, strategy = resolve_strategy(name)
            if not self._allows_joint:
                strategy = dataclasses.replace(strategy, results="own")
            if reason:
                self._impossible[name] = reason
                continue
            own = {option.name for option in config.declared(kind.options) if not option.group}
            given = {key: getattr(options, key) for key in own - {"strategy", "sparse_as_dense"}}
            try:
                resolved = resolve_options(kind, {**given, "strategy": strategy})
            except ValueError as error:
                self._impossible[name] = str(error)
                continue
            assert kind.make_step is not None
            self._candidates[name] = kind.make_step(function, resolved)  # type: ignore[assignment]
        self._begin()

    def _begin(self) -> None:
        """Begins a job, before any trial."""
        self._is_checked = False
        self._is_repeated: set[str] = set()  # strategies that have repeated a step
        self._left_out = dict(self._impossible)
        self._members: dict[str, TrainingStep] = {_FIRST: self._first}
        self._schedule: tuple[str, ...] = ()
        self._num_timed = 0  # steps of the schedule so far
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._medians: dict[str, float] = {}
        self._predicted: dict[str, str] = {}  # steps, by strategy
        self._largest_speedup = float("inf")  # of data parallelism over the others, predicted
        self._active = self._chosen = _FIRST
        self._is_chosen = False

    # The user's interface.

    @property
    def is_method(self) -> bool:
        """True if the first argument of each step is the object of a method."""
        return self._first.is_method

    @is_method.setter
    def is_method(self, value: bool) -> None:
        for step in (self._first, *self._candidates.values()):
            step.is_method = value

    @property
    def _step(self) -> TrainingStep:
        return self._members[self._active]

    @property
    def state(self) -> TuningState:
        """Tuning state of the strategy of the last step; phase "race" while turns are timed."""
        if self._schedule and not self._is_chosen:
            return TuningState(Phase.RACE)
        return self._step.state

    @property
    def plan(self) -> Any:
        """Plan of the strategy of the last step."""
        return self._step.plan

    @property
    def settled(self) -> bool:
        """Returns whether trials and measurements have ended; the same step on every rank."""
        return (self._is_chosen or self._is_alone) and self._step.settled

    @property
    def _is_alone(self) -> bool:
        return self._first.state.phase is Phase.PASS_THROUGH

    def explain(self) -> str:
        """Returns the facts known so far, as text of at most 100 columns."""
        lines = [self._compared()] if self._medians else []
        lines += [f"{name} is left out: {reason}" for name, reason in self._left_out.items()]
        wrapped = [part for line in lines for part in textwrap.wrap(line, formatting.COLUMNS)]
        return "\n".join([*wrapped, *self._table(), self._step.explain()])

    def _table(self) -> list[str]:
        """Returns a line per strategy that was measured: its median step, and the ratio to it."""
        if not self._medians:
            return []
        best = self._medians[self._chosen]
        width = max(map(len, self._medians))
        lines = [f"  {'':<{width}}  {'step':>9}  ratio  {'predicted':>17}"]
        for name, seconds in self._medians.items():
            mark = "  active" if name == self._chosen else ""
            measured = f"{formatting.time(seconds):>9}  {seconds / best:5.2f}"
            lines.append(
                f"  {name:<{width}}  {measured}  {self._predicted.get(name, '-'):>17}{mark}"
            )
        return lines

    def _compared(self) -> str:
        times = ", ".join(
            f"{name} {formatting.time(seconds)}" for name, seconds in self._medians.items()
        )
        others = {name: seconds for name, seconds in self._medians.items() if name != _FIRST}
        other = min(others, key=lambda name: others[name])
        ratio = others[other] / self._medians[_FIRST]
        return (
            f"{_FIRST} trains {ratio:.2f} times as fast as {other} in interleaved steps ({times});"
            f" active: {self._active}"
        )

    def record(self, make_record: Callable[[str, int], Record]) -> None:
        """See `TrainingStep`."""
        self._step.record(make_record)

    def check_variables(self) -> None:
        """See `TrainingStep`; under a strategy of another kind, they differ by design."""
        self._step.check_variables()

    def synchronize_variables(self) -> None:
        """See `TrainingStep`."""
        for step in (self._first, *self._candidates.values()):
            step.synchronize_variables()

    def close(self) -> None:
        """See `TrainingStep`."""
        for step in (self._first, *self._candidates.values()):
            step.close()

    # Steps.

    def step(self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int = 1) -> Any:
        """See `TrainingStep`. Several steps in one graph are no trial."""
        if self._first.rendezvous.is_over:
            self._begin()
        if num_steps != 1 or is_joined():
            # No other strategy runs several steps, or ranks without a batch.
            self._active = _FIRST
            self._is_chosen = self._is_chosen or not self._schedule
            return self._first.step(args, kwargs, num_steps)
        if self._is_chosen and self._schedule:
            self._active = self._chosen
        if self._is_chosen or self._is_alone:
            return self._step.step(args, kwargs)
        candidate = self._next_repeated(args, kwargs)
        if candidate is not None:
            return self._repeat(candidate, args, kwargs)
        is_timed = self._advance()
        start = time.perf_counter()
        result = self._step.step(args, kwargs)
        if is_timed:
            if self._num_timed % STEPS_PER_TURN:
                self._seconds[self._active].append(time.perf_counter() - start)
            self._num_timed += 1
        return result

    def _next_repeated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Returns a strategy that has not repeated a step, once data parallelism has settled."""
        if self._schedule or not self._first.settled:
            return None
        if not self._is_checked:
            self._check_candidates(args, kwargs)
        return next((n for n in self._members if n not in {_FIRST, *self._is_repeated}), None)

    def _repeat(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trains a step by data parallelism, after another strategy has run and undone it."""
        self._is_repeated.add(name)
        self._active = _FIRST
        undone = self._run_undone(name, args, kwargs)
        start = time.perf_counter()
        result = self._first.step(args, kwargs)
        usual = time.perf_counter() - start
        reason = same_step.describe_difference(undone, result, self._allows_joint)
        reasons = [one for one in self._first.exchange(reason) if one]
        reason = reasons[0] if reasons else self._time_repeated(name, usual, args, kwargs)
        if reason:
            self._leave_out(name, reason)
        return result

    def _run_undone(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> same_step.UndoneStep:
        candidate = self._candidates[name]
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
        everyone = self._first.exchange((self._largest_speedup > FAR_FASTER, usual))
        if not any(may_be_slow for may_be_slow, _ in everyone):
            return ""
        usual = max(seconds for _, seconds in everyone)
        for _ in range(2):  # the first may be slow by chance
            undone = self._run_undone(name, args, kwargs)
            seconds = max(self._first.exchange(undone.seconds))
            if seconds <= FAR_FASTER * usual:
                return ""
        return f"a step took {formatting.time(seconds)}, one of {_FIRST} {formatting.time(usual)}"

    def _advance(self) -> bool:
        """Sets the strategy of the next step; returns whether the step belongs to a turn."""
        if not self._schedule:
            if not self._first.settled:
                return False
            for name, step in self._members.items():
                if not step.settled:
                    self._active = name
                    return False
            if len(self._members) == 1:
                self._is_chosen = True
                return False
            self._schedule = make_schedule(tuple(self._members))
        turn = self._num_timed // STEPS_PER_TURN
        if turn < len(self._schedule):
            self._active = self._schedule[turn]
            return True
        self._medians = combine_ranks(self._first.exchange(dict(self._seconds)))
        self._active = self._chosen = choose_fastest(self._medians)
        self._is_chosen = True
        self._log(self._compared())
        return False

    def _check_candidates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Leaves out strategies that would compute other weights, on all ranks alike."""
        self._is_checked = True
        _, num_ranks = self._first.rendezvous.place
        reason = self._reason_against()
        mine: dict[str, str | None] = {}
        for name, step in self._candidates.items():
            try:
                mine[name] = reason or step.rejects(args, kwargs, num_ranks)
            except Exception as error:  # of the script, traced for the joint batch
                mine[name] = f"{type(error).__name__}: {error}"
            mine[name] = _last_line(mine[name])
        for rejected in self._first.exchange(mine):
            for name, reason in rejected.items():
                if reason is not None:
                    self._left_out.setdefault(name, reason)
        self._members |= {
            name: step for name, step in self._candidates.items() if name not in self._left_out
        }
        for name, reason in self._left_out.items():
            self._leave_out(name, reason)

    def _leave_out(self, name: str, reason: str) -> None:
        self._left_out[name] = reason
        self._members.pop(name, None)
        self._log(f"{name} is left out of the trials: {reason}")

    def _reason_against(self) -> str:
        """Returns why no strategy of another kind can continue; empty if it may."""
        conclusion = self._first.state.conclusion
        compared = None if conclusion is None else conclusion.compare_with_one_worker()
        if compared is not None:
            most = formatting.time(compared.one_worker_seconds)
            self._predicted = dict.fromkeys(self._candidates, f"at most {most}")
            self._largest_speedup = compared.speedup
            if compared.speedup > HOPELESS:
                return f"it is predicted to be far slower: {compared.describe()}"
        if self._first.rendezvous.options.engine != "lanes":
            return "the engine is not lanes, which carry examples and results between ranks"
        if self._first.gathers_rows:
            return (
                "gradients are sparse, and an optimizer may apply them otherwise than dense ones;"
                " sparse_as_dense=True makes them dense under every strategy"
            )
        return ""

    def _log(self, message: str) -> None:
        rank, _ = self._first.rendezvous.place
        if rank == 0:
            log_utils.logger(rank).info("strategies: %s", message)


def _last_line(reason: str | None) -> str | None:
    """Returns what an error says, without the lines of user code that AutoGraph puts before."""
    if reason is None or "\n" not in reason:
        return reason
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
    return "plan= is followed without trials" if options.plan is not None else ""


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
