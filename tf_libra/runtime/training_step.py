"""A training function as the user's script calls it: every step, on every rank.

A step goes one way: the ranks meet (`rendezvous.py`), the call gets a trace (`step_tracer.py`),
and the session of the trace's gradients (`tuning_session.py`) executes the call under its plan.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_libra import config
from tf_libra.autotune import Phase, Tuner, tune
from tf_libra.capture import finite_check, instrumented_function
from tf_libra.capture.gradient_interception import check_call_context
from tf_libra.capture.gradient_weight import gradient_weight, is_weighted
from tf_libra.coordination.control_plane import Control, between_steps
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.reporting.records.record_types import Record
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime.chosen_values import ChosenValues, trace_key
from tf_libra.runtime.error_feedback import ErrorFeedbackState
from tf_libra.runtime.fingerprint import function_identity
from tf_libra.runtime.plan_cache import PlanCache
from tf_libra.runtime.protocol import TuningState
from tf_libra.runtime.rendezvous import Rendezvous
from tf_libra.runtime.session_registry import SessionRegistry
from tf_libra.runtime.sharded_calls import ShardedCalls
from tf_libra.runtime.step_tracer import StepCall, StepTracer
from tf_libra.runtime.tuning_session import TuningSession
from tf_libra.specs.plan import Plan
from tf_libra.variable_sync.sharded_variables import shard_registry
from tf_libra.variable_sync.step_variables import StepVariables


class TrainingFunction:
    """One decorated function in this process.

    Each set of gradients that its traces all-reduce has a session, with a plan, of its own.

    Attributes:
        is_method: whether the first argument of a step is the object whose method it is.
        error_feedback: rounding errors for the next gradients; None without that option.
        step_number: number of the last step, which messages and records name.
        runs_several: True: graphs may hold several steps.
    """

    runs_several = True

    def __init__(
        self,
        function: Callable[..., Any],
        options: config.DataParallelOptions,
        tuner: Callable[..., Tuner] | None = None,
        weights: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        """Runs nothing before the first step.

        Args:
            function: a `tf.function` or a plain function.
            options: the user's options.
            tuner: as for `Optimized`.
            weights: as for `Optimized`.

        Raises:
            ValueError: the function is compiled by XLA.
        """
        self._function = function
        self._options = options
        self._tuner = tune if tuner is None else tuner
        self._name = instrumented_function.step_name(function)
        self._identity = function_identity(self._name)
        self._alone = instrumented_function.as_tf_function(function)
        self._rendezvous = Rendezvous(self._name, self._identity, options)
        self.is_method = False
        self._weights = weights
        self._is_closed = False
        self.error_feedback = ErrorFeedbackState(self._identity) if options.error_feedback else None
        self._begin_job()

    def _begin_job(self) -> None:
        """Begins without ranks, traces and sessions."""
        options = self._options
        self._watch: finite_check.FiniteCheck | None = None
        self._tracer = StepTracer(
            self._function, self._name, self._identity, options, lambda: self.is_method
        )
        self._variables = StepVariables(
            options.local_variables, options.broadcast_variables, self._weights
        )
        self._chosen = ChosenValues(self._variables)
        self._sharded = ShardedCalls(self._identity, options)
        self._sessions = SessionRegistry(
            self._name,
            self._identity,
            self._rendezvous,
            self._variables,
            self._tuner,
            self._new_reporter,
            self._sharded.find_weights,
        )
        self.step_number = 0

    def _new_reporter(self) -> RunReporter:
        reporter = RunReporter(self._options)
        if self._is_closed:
            reporter.close()
        return reporter

    # What the user asks.

    @property
    def state(self) -> TuningState:
        """Tuning state of the gradients that were trained last."""
        if self._sessions.current is not None:
            return self._sessions.current.state
        return TuningState(Phase.PASS_THROUGH if self._rendezvous.is_alone else Phase.TRACE)

    @property
    def plan(self) -> Plan | None:
        """Active plan of the gradients that were trained last."""
        conclusion = self.state.conclusion
        return None if conclusion is None else conclusion.plan

    @property
    def settled(self) -> bool:
        """Returns whether trials and measurements have ended; the same step on every rank."""
        current = self._sessions.current
        return self._rendezvous.is_alone or (current is not None and current.settled)

    def explain(self) -> str:
        """Returns the facts known so far, as text of at most 100 columns."""
        return self._sessions.reporter.explain()

    def record(self, make_record: Callable[[str, int], Record]) -> None:
        """Writes a record, made from the function's name and the rank, to the log directory."""
        self._sessions.reporter.record(make_record)

    def write_files(self, write_files: Callable[[Path, str, logging.Logger], None]) -> None:
        """See `RunReporter`."""
        self._sessions.reporter.write_files(write_files)

    def count_other_step(self, strategy: str) -> None:
        """See `RunReporter.on_other_step`."""
        self._sessions.reporter.on_other_step(strategy)

    def close(self) -> None:
        """Reports the summary, and stops recording."""
        self._is_closed = True
        self._sessions.close_reporters()

    def synchronize_variables(self) -> None:
        """Gathers the slots of which each rank holds the parts that it owns (`shard_updates`).

        Raises:
            HorovodInternalError: a rank is gone, late, or gave up.
        """
        if self._rendezvous.control is not None:
            self._during(self._sharded.finish)

    def check_variables(self) -> None:
        """Compares the replicated variables of all traces so far between ranks.

        Raises:
            ValueError: on every rank: the first variable that differs.
        """
        control = self._rendezvous.control
        if control is not None:
            self._between_steps("check_variables", partial(self._check_variables, control))

    def exchange(self, value: Any) -> list[Any]:
        """Returns the JSON values of all ranks, which call it between the same steps.

        Raises:
            HorovodInternalError: a rank is gone, late, or gave up.
        """
        control = self._rendezvous.control
        assert control is not None
        return list(self._between_steps("an exchange", partial(control.all_gather, value)))

    def exchange_in_step(self, value: Any) -> list[Any]:
        """Returns the JSON values of all ranks, which call it as the same step begins.

        Unlike `exchange`, it does not check that all ranks are between steps, and is cheaper.

        Raises:
            HorovodInternalError: a rank is gone, late, or gave up.
        """
        control = self._rendezvous.control
        assert control is not None
        return list(self._during(partial(control.all_gather, value)))

    @property
    def rendezvous(self) -> Rendezvous:
        """The ranks of the last step."""
        return self._rendezvous

    @property
    def gathers_rows(self) -> bool:
        """Returns whether a gradient is sparse, so that rows are gathered."""
        return self._sessions.gathers_rows

    @property
    def cache(self) -> PlanCache | None:
        """Plan cache of the gradients that were trained last, on rank 0; None on other ranks."""
        return None if self._sessions.current is None else self._sessions.current.cache

    def _between_steps(self, what: str, call: Callable[[], Any]) -> Any:
        """Makes a call that all ranks make between the same steps."""

        def call_together() -> Any:
            self._rendezvous.check_sync_point(between_steps(what))
            return call()

        return self._during(call_together)

    def _during(self, call: Callable[[], Any]) -> Any:
        """Makes a call during which other ranks may wait for this one."""
        try:
            return step_interrupts().during(call)
        except BaseException as error:
            self._fail(error, error)
            raise

    def _check_variables(self, control: Control) -> None:
        self._sharded.finish()
        self._variables.check(control)

    # One step.

    def step(self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int = 1) -> Any:
        """Runs one training step, or a graph of `num_steps` of them.

        Raises:
            ValueError: an option or argument is invalid, or the ranks disagree; names it.
            FloatingPointError: on every rank, with `check_numerics="raise"`: a gradient is not
                finite. No variable was changed, and training may go on.
            tf.errors.OutOfRangeError: every rank's data have come to an end, in the same step.
            HorovodInternalError: a rank is gone, late, or gave up; the step was not completed.
                Under a strategy of TensorFlow it is a `tf.errors.UnavailableError`.
            EngineError, tf.errors.OpError: the same call would fail again.
        """
        if self._rendezvous.is_over:
            self.leave_job()
        self._rendezvous.check()
        if self._rendezvous.is_alone:
            return self._call_alone(args, kwargs)
        check_call_context(
            self._name,
            ", where no plan can follow it: call it from Python, or decorate the outer function"
            " instead; where that is Keras' fit, call tf_libra.keras.optimize(model) instead",
        )
        try:
            return step_interrupts().during(
                partial(self._synchronous_step, args, kwargs, num_steps)
            )
        except finite_check.NotFiniteError:
            raise
        except BaseException as error:
            cause = error
            is_end = isinstance(error, tf.errors.OutOfRangeError)
            if is_end and self._rendezvous.control is not None:
                elsewhere = self._end_of_data()
                if elsewhere is None:
                    raise
                cause = elsewhere
            self._fail(cause, error)
            raise

    def chosen_values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str] | None:
        """Returns digests of values that ranks may choose; None for an evaluation, of any rank."""
        if not self._tracer.has_trained:
            return []
        key = None if self.is_method or is_weighted() else trace_key((args, kwargs))
        known = self._chosen.known_digests(key)
        if known is not None:
            return known
        call = self._during(partial(self._bind, args, kwargs))
        if self._tracer.is_rank_local(call.trace.trace):
            return None
        return self._chosen.digests(call, key)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepCall:
        return self._tracer.bind(args, kwargs, self.step_number + 1, self._sessions.reporter)

    def _call_alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return instrumented_function.call_plain(self._alone, self.is_method, args, kwargs)

    def leave_job(self) -> None:
        """Ends the job whose ranks have changed; the next step begins another."""
        self._rendezvous.end()
        self._sessions.close()
        self._begin_job()

    def _fail(self, cause: BaseException, error: BaseException) -> None:
        """Aborts the step on the other ranks, which would wait for this one."""
        self._sessions.reporter.on_idle()
        try:
            self._sharded.fail(is_exit=isinstance(cause, KeyboardInterrupt | SystemExit))
        finally:
            self._rendezvous.abort(cause, error)
        if cause is not error:
            raise cause from error

    def _end_of_data(self) -> BaseException | None:
        """Returns None if every rank's data end here, else what contradicts or interrupts it."""
        try:
            step_interrupts().during(self._complete_end_of_data)
        except BaseException as error:
            return error
        return None

    def _complete_end_of_data(self) -> None:
        self._rendezvous.check_sync_point(between_steps("the end of the data"))
        assert self._rendezvous.control is not None
        self._sharded.complete(self._rendezvous.control)

    def _synchronous_step(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int
    ) -> Any:
        if self._rendezvous.control is None:
            self._join()
        control = self._rendezvous.control
        if control is None:
            return self._call_alone(args, kwargs)
        assert self._rendezvous.job is not None
        self._tracer.connect(control, self._rendezvous.job, self._watch)
        call = self._bind(args, kwargs)
        if self._tracer.is_rank_local(call.trace.trace):
            return call.run()  # it fetches variables that only other ranks have
        control.set_step(self.step_number + 1)
        shards, own = shard_registry(), self._sharded.slots
        if shards.has_stale(but=own):
            held = {bound.key: bound for bound in call.touched() if bound.is_variable}
            shards.synchronize(held, but=own)
        if not self._sessions.is_known(call):
            self._sharded.finish()  # to compare variables
        session = self._sessions.select(control, call)
        self._tracer.has_trained = True
        run = self._run if self._watch is None else partial(self._run_if_finite, self._watch)
        execute = partial(run, control, session, call, num_steps)
        has_batch = not is_weighted() or gradient_weight().value
        return execute() if has_batch else self._without_batch(call, execute)

    def _join(self) -> None:
        """Meets the other ranks, if there are any."""
        self._rendezvous.join(self._sessions.reporter)
        if self.error_feedback is not None:
            self.error_feedback.join(*self._rendezvous.rank_and_size)
        if self._options.check_numerics != "off" and not self._rendezvous.is_alone:
            self._watch = finite_check.FiniteCheck()

    def _run(self, control: Control, session: TuningSession, call: StepCall, num_steps: int) -> Any:
        first = self.step_number + 1
        self.step_number += num_steps
        self._rendezvous.options.backend.begin_step()
        execute = partial(call.execute, control, self._identity, self.step_number, num_steps)
        shard = partial(self._sharded.prepare, control, call)
        with self._sharded.computing(), self._chosen.stepping(call):
            result = session.step(first, execute, num_steps, shard)
        control.end_step(self.step_number)
        if session.state.conclusion is not None and session.state.is_running:
            plan = session.state.conclusion.plan
            self._sharded.report(control, plan, session.reporter)
        session.record_graph(self.step_number, call.concrete.graph)
        return result

    def _without_batch(self, call: StepCall, execute: Callable[[], Any]) -> Any:
        """Takes part in a step of the ranks that have a batch.

        Variables that are computed from this rank's examples, such as moving averages and metrics,
        keep their values.
        """
        touched = call.touched()
        local = self._variables.rank_local(call.trace.flow(call.concrete, touched), touched)
        before = finite_check.VariableSnapshot(local)
        result = execute()
        before.restore()
        return result

    def _run_if_finite(
        self,
        watch: finite_check.FiniteCheck,
        control: Control,
        session: TuningSession,
        call: StepCall,
        num_steps: int,
    ) -> Any:
        """Undoes the step if a gradient was not finite."""
        before = finite_check.VariableSnapshot(held for held in call.touched() if held.is_variable)
        result = self._run(control, session, call, num_steps)
        found, first = watch.take()
        if found:
            before.restore()
            message = (
                f"step {self.step_number} of {self._name} does not count, and no variable was"
                f" changed: {finite_check.culprits(control, first)}"
            )
            if self._options.check_numerics == "raise":
                raise finite_check.NotFiniteError(message)
            self._sessions.reporter.log.warning("%s", message)
        return result
