"""A training function as the user's script calls it: meets the other ranks, traces, and runs.

Every set of gradients that its traces all-reduce has a session of its own, with a plan of its own.
"""

import atexit
import contextlib
import platform
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from tf_libra import options as options_lib
from tf_libra.backends import control as control_lib
from tf_libra.backends import engine as engine_lib
from tf_libra.backends import horovod, interrupts, side_channel
from tf_libra.backends.agreement import agree
from tf_libra.backends.control import Control
from tf_libra.model.plan import Plan
from tf_libra.session import executions, grappler, joins
from tf_libra.session.session import (
    Session,
    check_plan_can_run,
    check_plan_fits,
    package_version,
)
from tf_libra.session.sharing import Sharing
from tf_libra.session.trace import Call, KnownTrace
from tf_libra.story.journal import Journal
from tf_libra.tracing import marked_function, numerics, patches
from tf_libra.tracing.marked_function import Trace
from tf_libra.tracing.marking import refuse_eager_functions, refuse_strategies
from tf_libra.tracing.marks import MarkedGradient, Rules
from tf_libra.tracing.variables import variable_name
from tf_libra.tuning import Phase, TensorSpec

# How many functions of a name this process has decorated. A script decorates in the same order on
# every rank, so that counting tells apart two that share name and variables.
_DECORATED: Counter[str] = Counter()


class Script:
    """One decorated function in this process.

    Attributes:
        journal: what is known of the gradients that were trained last.
    """

    def __init__(self, function: Callable[..., Any], options: options_lib.Options) -> None:
        """Runs nothing before the first step.

        Raises:
            ValueError: the function is compiled by XLA.
        """
        self._function = function
        self._options = options
        self._name = marked_function.step_name(function)
        count = _DECORATED[self._name]
        _DECORATED[self._name] += 1
        self._identity = f"{self._name}#{count}" if count else self._name
        self._alone = marked_function.as_tf_function(function)
        self._is_closed = False
        self._joins = contextlib.ExitStack()  # what is replaced while the ranks are connected
        self._forget()

    def _new_journal(self) -> Journal:
        journal = Journal(self._options)
        if self._is_closed:
            journal.close()
        return journal

    def _forget(self) -> None:
        """Knows nothing of other ranks, or of traces."""
        self.journal = self._new_journal()
        self._call = marked_function.marked_function(self._function, self._on_traced, self._rules)
        self._given: Plan | None = self._options.plan
        self._world: horovod.World | None = None
        self._was_reset = False
        self._never_met = ""  # why, if so
        self._control: Control | None = None
        self._watch: numerics.Watch | None = None
        self._traces: WeakKeyDictionary[tf.Graph, KnownTrace] = WeakKeyDictionary()
        self._warned: set[str] = set()
        self._sharing = Sharing(self._options.local_variables, self._options.broadcast_variables)
        self._agreed: set[tuple[MarkedGradient, ...]] = set()
        self._sessions: dict[tuple[MarkedGradient, ...], Session] = {}
        self._current: Session | None = None
        self._step = 0

    # What the user calls.

    def step(self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int = 1) -> Any:
        """Runs one training step, or a graph of `num_steps` of them.

        Raises:
            ValueError: something cannot be right, such as ranks that disagree; named.
            FloatingPointError: on every rank, with `check_numerics="raise"`: a gradient is not
                finite. No variable was changed, and training may go on.
            tf.errors.OutOfRangeError: every rank's data have come to an end, in the same step.
            HorovodInternalError: a rank is gone, late, or gave up; the step was not completed.
            EngineError, tf.errors.OpError: the same call would fail again.
        """
        if self._world is not None and (self._was_reset or horovod.world() != self._world):
            self._begin_anew()
        if self._never_met:
            raise horovod.internal_error(self._never_met)
        if self.journal.phase is Phase.PASS_THROUGH:
            return self._alone(*args, **kwargs)
        refuse_strategies(self._name)
        if not tf.executing_eagerly():
            raise ValueError(
                f"{self._name} is decorated with tf_libra.optimize, and called from inside of"
                " another tf.function, where no plan can follow it: call it from Python, or"
                " decorate the outer function instead"
            )
        try:
            return interrupts.of_this_process().during(
                lambda: self._synchronous_step(args, kwargs, num_steps)
            )
        except numerics.NotFiniteError:
            raise
        except BaseException as error:
            cause = error
            if isinstance(error, tf.errors.OutOfRangeError) and self._control is not None:
                elsewhere = self._end_of_data()
                if elsewhere is None:
                    raise
                cause = elsewhere
            self._fail(cause, error)
            raise

    def _fail(self, cause: BaseException, error: BaseException) -> None:
        """Tells the other ranks, which wait for a step that will not come."""
        self.journal.stopped()
        if self._control is not None:
            self._control.abort(f"{type(cause).__name__}: {cause}")
        if engine_lib.is_lost_rank(cause):
            if self._control is None:  # which would repeat it to later calls
                self._never_met = str(cause)
            raise horovod.internal_error(str(cause)) from error
        if cause is not error:
            raise cause from error

    def check_variables(self) -> None:
        """Compares the variables of all traces so far with those of every other rank.

        Raises:
            ValueError: on every rank: the first variable that differs.
        """
        if self._control is None:
            return
        try:
            interrupts.of_this_process().during(partial(self._compare_variables, self._control))
        except BaseException as error:
            self._fail(error, error)
            raise

    def _compare_variables(self, control: Control) -> None:
        self._meet("check_variables")
        self._sharing.check(control)

    def close(self) -> None:
        """Says how it went, and writes nothing down any more."""
        self._is_closed = True
        self._close_journals()

    def _close_journals(self) -> None:
        journals = [self.journal, *(session.journal for session in self._sessions.values())]
        for journal in {id(one): one for one in journals}.values():
            journal.close()

    @property
    def settled(self) -> bool:
        """Whether nothing is tried out or measured any more; the same step on every rank."""
        passes_through = self.journal.phase is Phase.PASS_THROUGH
        return passes_through or (self._current is not None and self._current.settled)

    # One step.

    def _synchronous_step(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int
    ) -> Any:
        if self._control is None and not self._meet_others():
            return self._alone(*args, **kwargs)
        assert self._control is not None
        refuse_eager_functions(self._name)
        self._control.set_step(self._step + 1)
        concrete = self._call.get_concrete_function(*args, **kwargs)
        trace = self._traces[concrete.graph]
        call = Call.of(trace, self._call.function, concrete, args, kwargs)
        session = self._session_of(call)
        execute = partial(self._execute, call, partial(self._call, *args, **kwargs))
        if self._watch is None:
            return self._run(session, execute, num_steps)
        return self._watched(self._watch, session, call, execute, num_steps)

    def _execute(self, call: Call, function: Callable[[], Any]) -> Any:
        """Calls the function, and sees to it that what had to be all-reduced was."""
        executions.forget(self._identity)
        result = function()
        executions.check(self._identity, call.trace.certain(call.concrete), self._step)
        return result

    def _run(self, session: Session, execute: Callable[[], Any], num_steps: int) -> Any:
        first = self._step + 1
        self._step += num_steps
        self._options.backend.begin_step()
        return session.step(first, execute, num_steps)

    def _watched(
        self,
        watch: numerics.Watch,
        session: Session,
        call: Call,
        execute: Callable[[], Any],
        num_steps: int,
    ) -> Any:
        assert self._control is not None
        before = numerics.Snapshot(one for one in call.touched() if one.is_variable)
        result = self._run(session, execute, num_steps)
        found, first = watch.take()
        if found:
            before.restore()
            message = (
                f"step {self._step} of {self._name} does not count, and no variable was changed:"
                f" {numerics.culprits(self._control, first)}"
            )
            if self._options.check_numerics == "raise":
                raise numerics.NotFiniteError(message)
            self.journal.log.warning("%s", message)
        return result

    def _end_of_data(self) -> tf.errors.OpError | None:
        """None if every rank's data end here; else what says that they do not."""
        try:
            self._meet("the end of the data")
        except tf.errors.OpError as error:
            return error
        return None

    def _meet(self, what: str) -> None:
        side_channel.meet(f"{what}, {self._identity}", self._identity)

    # Before the first step.

    def _meet_others(self) -> bool:
        """Meets them and compares what can be before tracing. False if there are none."""
        world = self._world = horovod.world()
        horovod.call_on_reset(self._on_reset)
        self._take_default_threads()
        self.journal.met(world.rank)
        if world.size == 1:
            self.journal.log.warning(
                "one process: %s runs as it is, without all-reduce; start workers with"
                " tf-libra run -np 2 python train.py",
                self._name,
            )
            self.journal.phase = Phase.PASS_THROUGH
            return False
        if grappler.is_switched_off():
            self.journal.log.warning(
                "Grappler is switched off (disable_meta_optimizer), so no plan can take effect:"
                " every gradient is all-reduced by itself"
            )
        if grappler.is_clustered_by_xla():
            self.journal.log.warning(
                "XLA clusters the step's ops by itself (tf.config.optimizer.set_jit or"
                " TF_XLA_FLAGS): gradients come when their cluster ends, and less overlaps"
            )
        if self._given is not None and horovod.is_elastic():
            self._set_aside_plan_of_others(self._given, world)
        self.journal.record(self._identity)
        self.journal.busy(Phase.TRACE)
        self._control, is_new = self._shared_control(world)
        if not is_new:
            # Another rank may be in the middle of another function's step.
            self._meet("the first step")
        # First of all, so that what is wrong on one rank alone is not left for others to wait for.
        agree(self._control, self._statement(world))
        # Another function may have started what this one needs more of; on all ranks alike.
        backend = self._options.backend
        backend.get_ready(world, options_lib.most_threads(self._options))
        if self._given is not None:
            check_plan_can_run(self._given, world.size, backend)
        if self._options.check_numerics is not None:
            self._watch = numerics.Watch()
        return True

    def _take_default_threads(self) -> None:
        """Those of the backend, which is prepared by now."""
        options = self._options
        if not options.default_threads:
            return
        strategy = options.backend.default_threads(options.strategy)
        if strategy != options.strategy:
            self._options = replace(options, strategy=strategy)
            self.journal = self._new_journal()

    def _shared_control(self, world: horovod.World) -> tuple[Control, bool]:
        """What reaches the other ranks, and whether it was started just now."""
        running = control_lib.running()
        if running is not None:
            return running, False
        options = self._options
        terms = control_lib.Terms(
            options.backend.num_lanes(options_lib.most_threads(options)),
            options.timeout_seconds,
            options.stall_warning_seconds,
        )
        running = control_lib.resolve(options.backend.control).start(world, terms)
        atexit.register(self._close, running)
        if patches.JOIN.exists():
            self._joins.enter_context(patches.replaced(patches.JOIN, joins.meeting_first))
        return running, True

    def _close(self, control: Control) -> None:
        self._joins.close()
        try:
            control.close()
        except engine_lib.EngineError as error:  # what hangs must not keep the process
            self.journal.log.warning("closing: %s", error)

    def _on_reset(self) -> None:
        """Horovod's elastic mode has made a new job of the workers that there are now."""
        running = control_lib.running()
        if running is not None:
            self._close(running)
        self._was_reset = True
        # New workers count from the start.
        _DECORATED.clear()

    def _begin_anew(self) -> None:
        """The ranks are others than before: meets them, traces and measures again."""
        world = horovod.world()
        running = control_lib.running()
        if running is not None and (running.rank, running.world_size) != (world.rank, world.size):
            self._close(running)
        self._close_journals()
        for session in self._sessions.values():
            session.close()
        self._forget()

    def _set_aside_plan_of_others(self, plan: Plan, world: horovod.World) -> None:
        """An elastic job outlives the number of workers that a given plan was made for."""
        if plan.num_workers != world.size:
            self.journal.log.warning(
                "plan: made for %d workers, and there are %d now; measuring for another",
                plan.num_workers,
                world.size,
            )
            self._given = None

    def _statement(self, world: horovod.World) -> dict[str, Any]:
        options = self._options
        return {
            "world size": world.size,
            "version of TensorFlow": tf.__version__,
            "version of tf_libra": package_version(),
            "machine": f"{platform.machine()}, {sys.byteorder} endian",
            "function": self._identity,
            "engine": options.engine,
            **options.backend.agreed(),
            "strategy": repr(options.strategy),
            "plan": None if self._given is None else self._given.fingerprint,
            "broadcast_variables": options.broadcast_variables,
            "local_variables": [
                one if isinstance(one, str) else variable_name(one)
                for one in options.local_variables
            ],
            "check_numerics": options.check_numerics,
            "sparse_as_dense": options.sparse_as_dense,
            "inner_gradients": options.inner_gradients,
            "Grappler switched off": grappler.is_switched_off(),
        }

    # Traces.

    def _rules(self) -> Rules:
        return Rules(
            function=self._identity,
            sparse_as_dense=self._options.sparse_as_dense,
            inner_gradients=self._options.inner_gradients,
            place=self._place,
            watch=self._watch,
        )

    def _place(self) -> tuple[int, int]:
        assert self._control is not None
        return self._control.rank, self._control.world_size

    def _on_traced(self, trace: Trace) -> None:
        """At the end of every trace: what is all-reduced must be the same everywhere."""
        self._traces[tf_ops.get_default_graph()] = KnownTrace(trace)
        self._warn_of(trace)
        marked = trace.marked
        if marked in self._agreed or self._control is None:
            return
        if self._current is not None:
            # The other ranks may be at a step already, with what they have traced before.
            self._meet("a new trace")
        agree(
            self._control,
            {
                "averaged gradients": [one.name for one in marked],
                "gradient": {one.name: f"{one.dtype} {one.shape}" for one in marked},
                "gathered": {one.name: one.is_gathered for one in marked},
            },
        )
        self._agreed.add(marked)

    def _warn_of(self, trace: Trace) -> None:
        """Says once what no plan is about, though a script may take it for averaged."""
        in_datasets = [one.name for one in trace.marked if one.in_dataset]
        for names, what in (
            (trace.missing, "%s computes no gradient for %s: it is None, as without TF-Libra"),
            (trace.jacobians, "%s returns the jacobian of %s, of each rank's own data"),
            (
                in_datasets,
                "%s computes gradients in a function of tf.data, which no plan reaches:"
                " %s are all-reduced one by one",
            ),
        ):
            if names and what not in self._warned:
                self._warned.add(what)
                self.journal.log.warning(what, self._name, _some(names))

    def _session_of(self, call: Call) -> Session:
        """The session of the gradients that a trace all-reduces, perhaps a new one."""
        marked = call.trace.marked
        if self._current is None or marked not in self._sessions:
            self._sessions[marked] = self._new_session(call)
        elif call.given not in call.trace.met:
            self._share(call, has_met=False)
        self._current = self._sessions[marked]
        self.journal = self._current.journal
        return self._current

    def _share(self, call: Call, has_met: bool) -> None:
        """Lets variables that are new to this function start equal on all ranks.

        Args:
            call: touches them.
            has_met: whether the other ranks are at the same place, and compare theirs.
        """
        assert self._control is not None
        touched = call.touched()
        judged = self._sharing.judge(call.trace.flow(call.concrete, touched), touched)
        self._sharing.note(touched, judged)
        if has_met or not self._sharing.is_known(touched, judged):
            if not has_met:
                self._meet("new variables")
            copied = self._sharing.compare(self._control, touched, judged)
            if copied.names:
                self.journal.copied(copied.names, copied.num_compared)
        call.trace.met.add(call.given)

    def _new_session(self, call: Call) -> Session:
        assert self._control is not None
        marked, left = call.trace.marked, call.trace.left_to_horovod
        if not marked and not left:
            raise ValueError(
                f"{self._name} computes no gradient of a trainable variable with"
                " tf.GradientTape, so there is nothing to all-reduce"
            )
        # What is gathered has another size on every rank and in every step.
        tensors = tuple(
            TensorSpec(one.name, one.num_bytes, one.dtype) for one in marked if one.is_planned
        )
        is_first = not self._sessions
        journal = self.journal
        if not is_first:
            journal = self._new_journal()
            journal.met(self._control.rank)
            journal.record(f"{self._identity}, trace {1 + len(self._sessions)}")
            journal.log.info(
                "trace: %s has a new trace, which all-reduces other gradients than before: it"
                " gets a plan of its own",
                self._name,
            )
        if left:
            journal.left_to_horovod(left, anything_else=bool(marked))
        plan = self._given if marked else None
        if plan is not None:
            try:
                check_plan_fits(plan, tensors)
            except ValueError as error:
                if is_first:
                    raise
                journal.log.warning("plan: the one given does not fit this trace: %s", error)
                plan = None
        if is_first:
            for pattern in self._sharing.unmatched(call.touched()):
                journal.log.warning(
                    "local_variables: %r matches no variable of %s so far", pattern, self._name
                )
        self._share(call, has_met=True)
        return Session(
            self._identity,
            self._control,
            self._options,
            journal,
            tensors,
            str(call.concrete.structured_input_signature),
            plan,
        )


def _some(names: Sequence[str], most: int = 5) -> str:
    listed = ", ".join(repr(name) for name in names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"
