"""A training function as the user's script calls it: every step that it takes, on every rank.

Every set of gradients that its traces all-reduce has a session of its own, with a plan of its own.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tf_libra import config
from tf_libra.autotune import Phase, TensorSpec, Tuner, tune
from tf_libra.capture import finite_check, instrumented_function
from tf_libra.capture.gradient_interception import check_call_context, reject_eager_functions
from tf_libra.capture.gradient_registry import ReducedGradient, ReductionPolicy
from tf_libra.capture.instrumented_function import Trace
from tf_libra.capture.variables import handles, variable_name
from tf_libra.coordination.control_plane import Control, EngineError, between_steps
from tf_libra.coordination.job import Job
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.internal.formatting import listed
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime import execution_check, fingerprint
from tf_libra.runtime.concrete_traces import Call, ConcreteTraces
from tf_libra.runtime.plan_activation import check_plan_fits
from tf_libra.runtime.protocol import TuningState
from tf_libra.runtime.rendezvous import Rendezvous
from tf_libra.runtime.tuning_session import TuningSession
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import BackgroundStats
from tf_libra.variable_sync.bound_variables import is_named
from tf_libra.variable_sync.buffers import Buffers, untouched
from tf_libra.variable_sync.initial_broadcast import InitialBroadcast
from tf_libra.variable_sync.sharded_variables import shard_registry


class TrainingFunction:
    """One decorated function in this process.

    Attributes:
        is_method: whether steps are given first the object that it is a method of.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: config.Options,
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
        self._identity = fingerprint.function_identity(self._name)
        self._alone = instrumented_function.as_tf_function(function)
        self._meeting = Rendezvous(self._name, self._identity, options)
        self.is_method = False
        self._weights = weights
        self._is_closed = False
        self._forget()

    def _forget(self) -> None:
        """Knows nothing of other ranks, or of traces."""
        self._reporter = self._new_reporter()
        self._call = instrumented_function.marked_function(
            self._function, self._on_traced, self._rules, is_method=lambda: self.is_method
        )
        self._watch: finite_check.FiniteCheck | None = None
        self._traces = ConcreteTraces(self._name)
        self._sharing = InitialBroadcast(
            self._options.local_variables, self._options.broadcast_variables
        )
        self._buffers = Buffers(self._options.local_variables)
        self._sessions: dict[tuple[ReducedGradient, ...], TuningSession] = {}
        self._current: TuningSession | None = None
        self._step = 0

    def _new_reporter(self) -> RunReporter:
        reporter = RunReporter(self._options)
        if self._is_closed:
            reporter.close()
        return reporter

    # What the user asks.

    @property
    def state(self) -> TuningState:
        """Tuning state of the gradients that were trained last."""
        if self._current is not None:
            return self._current.state
        return TuningState(Phase.PASS_THROUGH if self._meeting.is_alone else Phase.TRACE)

    @property
    def plan(self) -> Plan | None:
        """The active plan of the gradients that were trained last."""
        conclusion = self.state.conclusion
        return None if conclusion is None else conclusion.plan

    @property
    def settled(self) -> bool:
        """Returns whether trials and measurements have ended; the same step on every rank."""
        return self._meeting.is_alone or (self._current is not None and self._current.settled)

    def explain(self) -> str:
        """Returns what is known so far, as text of at most 100 columns."""
        return self._reporter.explain()

    def background(self, got: BackgroundStats) -> None:
        """Records what a concurrent background job has got so far."""
        self._reporter.background(got)

    def close(self) -> None:
        """Says how it went, and writes nothing down any more."""
        self._is_closed = True
        self._close_stories()

    def _close_stories(self) -> None:
        self._reporter.close()
        for session in self._sessions.values():
            session.reporter.close()

    def synchronize_variables(self) -> None:
        """Does nothing: every rank updates all variables alike."""

    def check_variables(self) -> None:
        """Compares the variables of all traces so far with those of every other rank.

        Raises:
            ValueError: on every rank: the first variable that differs.
        """
        control = self._meeting.control
        if control is None:
            return
        try:
            step_interrupts().during(partial(self._compare_variables, control))
        except BaseException as error:
            self._fail(error, error)
            raise

    def _compare_variables(self, control: Control) -> None:
        self._meeting.check_sync_point(between_steps("check_variables"))
        self._sharing.check(control)

    # One step.

    def step(self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int = 1) -> Any:
        """Runs one training step, or a graph of `num_steps` of them.

        Raises:
            ValueError: something cannot be right, such as ranks that disagree; named.
            FloatingPointError: on every rank, with `check_numerics="raise"`: a gradient is not
                finite. No variable was changed, and training may go on.
            tf.errors.OutOfRangeError: every rank's data have come to an end, in the same step.
            HorovodInternalError: a rank is gone, late, or gave up; the step was not completed.
                Under a strategy of TensorFlow's it is a `tf.errors.UnavailableError`.
            EngineError, tf.errors.OpError: the same call would fail again.
        """
        if self._meeting.is_over:
            self._begin_anew()
        self._meeting.check()
        if self._meeting.is_alone:
            return instrumented_function.called_alone(self._alone, self.is_method, args, kwargs)
        check_call_context(
            self._name,
            ", where no plan can follow it: call it from Python, or decorate the outer function"
            " instead; where that is Keras' fit, call tf_libra.keras.optimize(model) instead",
        )
        try:
            return step_interrupts().during(lambda: self._synchronous_step(args, kwargs, num_steps))
        except finite_check.NotFiniteError:
            raise
        except BaseException as error:
            cause = error
            if isinstance(error, tf.errors.OutOfRangeError) and self._meeting.control is not None:
                elsewhere = self._end_of_data()
                if elsewhere is None:
                    raise
                cause = elsewhere
            self._fail(cause, error)
            raise

    def _begin_anew(self) -> None:
        """The ranks are others than before: meets them, traces and measures again."""
        self._meeting.end()
        self._close_stories()
        for session in self._sessions.values():
            session.close()
        self._forget()

    def _fail(self, cause: BaseException, error: BaseException) -> None:
        """Tells the other ranks, which wait for a step that will not come."""
        self._reporter.on_idle()
        self._meeting.give_up(cause, error)
        if cause is not error:
            raise cause from error

    def _end_of_data(self) -> tf.errors.OpError | EngineError | None:
        """Returns None if every rank's data end here, else the error that shows the contrary."""
        try:
            self._meeting.check_sync_point(between_steps("the end of the data"))
        except (tf.errors.OpError, EngineError) as error:
            return error
        return None

    def _synchronous_step(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int
    ) -> Any:
        if self._meeting.control is None:
            self._meet()
        if self._meeting.is_alone:
            return instrumented_function.called_alone(self._alone, self.is_method, args, kwargs)
        assert self._meeting.control is not None
        reject_eager_functions(self._name)
        concrete = self._concrete_function(args, kwargs)
        trace = self._traces.of(concrete)
        call = Call.of(trace, concrete, *self._call.called(args), kwargs)
        is_step = not self._is_rank_local(trace.trace)
        if is_step:
            self._meeting.control.set_step(self._step + 1)
        in_stages = shard_registry()
        if in_stages.anybody():
            in_stages.bring_back({one.key: one for one in call.touched() if one.is_variable})
        if not is_step:
            return self._call(*args, **kwargs)
        session = self._session_of(call)
        function = partial(self._call, *args, **kwargs)
        execute = partial(self._execute, call, function, num_steps)
        if self._watch is None:
            return self._run(session, execute, num_steps)
        return self._watched(self._watch, session, call, execute, num_steps)

    def _concrete_function(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Traces the step if need be, again if only then the ranks agree on names."""
        concrete = self._call.get_concrete_function(*args, **kwargs)
        if self._traces.is_renamed:
            self._call.forget_traces()
            concrete = self._call.get_concrete_function(*args, **kwargs)
        return concrete

    def _is_rank_local(self, trace: Trace) -> bool:
        """Returns whether a call of the trace is no training step: other ranks may not make it."""
        return trace.asks_for_nothing and self._current is not None

    def _meet(self) -> None:
        self._meeting.meet(self._reporter)
        if self._options.faults.check_numerics is not None and not self._meeting.is_alone:
            self._watch = finite_check.FiniteCheck()

    def _execute(self, call: Call, function: Callable[[], Any], num_steps: int) -> Any:
        """Calls the function, and sees to it that what had to be all-reduced was."""
        assert self._meeting.control is not None
        execution_check.forget(self._identity)
        with self._meeting.control.executing(f"step {self._step} of {self._identity}"):
            result = function()
        certain = call.trace.certain(call.concrete)
        execution_check.check(self._identity, certain, self._step, num_steps)
        assert self._current is not None
        self._current.keep_graph(self._step, call.concrete.graph)
        return result

    def _run(self, session: TuningSession, execute: Callable[[], Any], num_steps: int) -> Any:
        first = self._step + 1
        self._step += num_steps
        self._meeting.options.backend.begin_step()
        return session.step(first, execute, num_steps)

    def _watched(
        self,
        watch: finite_check.FiniteCheck,
        session: TuningSession,
        call: Call,
        execute: Callable[[], Any],
        num_steps: int,
    ) -> Any:
        assert self._meeting.control is not None
        before = finite_check.VariableSnapshot(one for one in call.touched() if one.is_variable)
        result = self._run(session, execute, num_steps)
        found, first = watch.take()
        if found:
            before.restore()
            message = (
                f"step {self._step} of {self._name} does not count, and no variable was changed:"
                f" {finite_check.culprits(self._meeting.control, first)}"
            )
            if self._options.faults.check_numerics == "raise":
                raise finite_check.NotFiniteError(message)
            self._reporter.log.warning("%s", message)
        return result

    # Traces, and the sessions of what they all-reduce.

    def _rules(self) -> ReductionPolicy:
        return ReductionPolicy(
            function=self._identity,
            sparse_as_dense=self._options.sparse_as_dense,
            inner_gradients=self._options.inner_gradients,
            place=self._place,
            watch=self._watch,
            by_strategy=self._by_strategy,
            is_own=self._is_own,
            names=dict(self._traces.names),
        )

    def _is_own(self, variable: Any) -> bool:
        return is_named(variable_name(variable), handles(variable), self._options.local_variables)

    @property
    def _job(self) -> Job:
        assert self._meeting.job is not None
        return self._meeting.job

    @property
    def _by_strategy(self) -> bool:
        return self._job.by_strategy

    def _place(self) -> tuple[int, int]:
        assert self._meeting.control is not None
        return self._meeting.control.rank, self._meeting.control.world_size

    def _on_traced(self, trace: Trace) -> None:
        if self._meeting.control is not None and not self._is_rank_local(trace):
            self._meeting.control.set_step(self._step + 1)
        meet = partial(self._meeting.check_sync_point, "a new trace")
        is_first = self._current is None
        self._traces.add(trace, self._meeting.control, self._reporter, None if is_first else meet)

    def _session_of(self, call: Call) -> TuningSession:
        """The session of the gradients that a trace all-reduces, perhaps a new one."""
        marked = call.trace.marked
        if self._current is None or marked not in self._sessions:
            self._sessions[marked] = self._new_session(call)
        elif call.given not in call.trace.met:
            self._share(call, has_met=False)
        self._current = self._sessions[marked]
        self._reporter = self._current.reporter
        return self._current

    def _share(self, call: Call, has_met: bool) -> None:
        """Lets variables that are new to this function start equal on all ranks.

        Args:
            call: touches them.
            has_met: whether the other ranks are at the same place, and compare theirs.
        """
        assert self._meeting.control is not None
        touched = call.touched()
        judged = self._sharing.judge(call.trace.flow(call.concrete, touched), touched)
        self._sharing.note(touched, judged)
        if has_met or not self._sharing.is_known(touched, judged):
            if not has_met:
                self._meeting.check_sync_point("new variables")
            copied = self._sharing.compare(self._meeting.control, touched, judged)
            if copied.names:
                self._reporter.on_variables_broadcast(copied.names, copied.num_compared)
            differing = self._buffers.find_differing(
                self._meeting.control, touched, judged, self._weights()
            )
            if differing:
                self._reporter.on_variables_differ(differing)
        call.trace.met.add(call.given)

    def _new_session(self, call: Call) -> TuningSession:
        assert self._meeting.control is not None
        marked, left = call.trace.marked, call.trace.left
        if not marked and not left:
            if self._by_strategy:
                raise ValueError(
                    f"{self._name} has {self._job.name} all-reduce no gradient of a variable, so"
                    " there is nothing to plan: call strategy.run in it, and in that"
                    " optimizer.apply_gradients"
                )
            of_examples = call.trace.trace.of_examples
            if of_examples:
                raise ValueError(
                    f"{self._name} computes gradients per example alone, of"
                    f" {listed(of_examples)} (tape.jacobian, tape.batch_jacobian, or a tape in"
                    " tf.vectorized_map). They are of each rank's own data, and so is the update"
                    " that the script makes of them: clip and sum them in the step, average that"
                    " with hvd.allreduce, and update the variables with the average"
                )
            raise ValueError(
                f"{self._name} computes no gradient of a trainable variable with"
                " tf.GradientTape, so there is nothing to all-reduce"
            )
        # What is gathered has another size on every rank and in every step.
        tensors = tuple(
            TensorSpec(one.name, one.num_bytes, one.dtype) for one in marked if one.is_planned
        )
        is_first = not self._sessions
        reporter = self._reporter if is_first else self._next_reporter(self._meeting.control)
        if left:
            reporter.on_unplanned_gradients(self._job.name, left, has_planned=bool(marked))
        given = self._given_for(tensors, reporter, is_first) if marked else None
        if is_first:
            touched = call.touched()
            known = [*touched, *untouched(touched, self._weights())]
            for pattern in self._sharing.unmatched(known):
                reporter.log.warning(
                    "local_variables: %r matches no variable of %s so far", pattern, self._name
                )
        self._share(call, has_met=True)
        return TuningSession(
            self._identity,
            self._meeting.control,
            self._meeting.options,
            reporter,
            tensors,
            fingerprint.environment_fingerprint(
                self._meeting.options.engine,
                str(call.concrete.structured_input_signature),
                self._meeting.local_size,
            ),
            given,
            self._tuner,
        )

    def _next_reporter(self, control: Control) -> RunReporter:
        """Returns the reporter for a trace that all-reduces other gradients than those before."""
        reporter = self._new_reporter()
        reporter.on_join(control.rank, self._meeting.options)
        reporter.on_function(f"{self._identity}, trace {1 + len(self._sessions)}")
        reporter.log.info(
            "trace: %s has a new trace, which all-reduces other gradients than before: it"
            " gets a plan of its own",
            self._name,
        )
        return reporter

    def _given_for(
        self, tensors: tuple[TensorSpec, ...], reporter: RunReporter, is_first: bool
    ) -> Plan | None:
        """The plan that was given, for these gradients; only the first trace has to fit it."""
        plan = self._meeting.given
        if plan is None:
            return None
        try:
            check_plan_fits(plan, tensors)
        except ValueError as error:
            if is_first:
                raise
            reporter.log.warning("plan: the one given does not fit this trace: %s", error)
            return None
        return plan
