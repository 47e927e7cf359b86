"""The life of one training step: trace, measure, sample, fit, plan, run.

Rank 0 alone judges. While it tries things out, every step begins with its directive to all
ranks; once a plan is in force nobody sends anything but gradients.
"""

import atexit
import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from tf_libra import options as options_lib
from tf_libra.plan import Plan
from tf_libra.profiling.samples import measured_timeline
from tf_libra.runtime import cache, grappler, horovod, nccl_tuner, tracing, variables
from tf_libra.runtime import engine as engine_lib
from tf_libra.runtime.agreement import agree
from tf_libra.runtime.journal import Journal
from tf_libra.runtime.marking import MarkedGradient, refuse_strategies
from tf_libra.runtime.observing import Observer
from tf_libra.runtime.telemetry import AllReduceRecord, of_step
from tf_libra.tuning import Experiment, Observation, Phase, TensorSpec, Tuning, tune

# Steps under the plan that are traced, after the first, to compare with what was predicted.
_CHECKED_STEPS = 5


@dataclass(frozen=True)
class Directive:
    """What every rank does in the next step."""

    step: int
    phase: Phase
    plan: Plan
    traced: bool = False
    kept: cache.Kept | None = None

    def to_message(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "step": self.step,
            "phase": self.phase.value,
            "plan": self.plan.to_json(),
            "traced": self.traced,
            "kept": None if self.kept is None else self.kept.to_json(),
        }

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> "Directive":
        """Reads what `to_message` wrote."""
        kept = message["kept"]
        return cls(
            message["step"],
            Phase(message["phase"]),
            Plan.from_json(message["plan"]),
            message["traced"],
            None if kept is None else cache.Kept.from_json(kept),
        )


@dataclass
class Session:
    """One decorated function in this process."""

    function: Callable[..., Any]
    options: options_lib.Options

    def __post_init__(self) -> None:
        self.journal = Journal(self.options)
        self._world: horovod.World | None = None
        self._was_reset = False
        self._given: Plan | None = self.options.plan
        self._name = tracing.step_name(self.function)
        self._call = tracing.marked_function(self.function, self._on_traced)
        self._alone = tracing.as_tf_function(self.function)
        self._marked: tuple[MarkedGradient, ...] = ()
        self._agreed: set[tuple[MarkedGradient, ...]] = set()
        self._engine: engine_lib.Engine | None = None
        self._tuning: Tuning | None = None
        self._observation: Observation | None = None
        self._observer: Observer | None = None
        self._observers: dict[str, Observer] = {}
        self._current: Plan | None = None
        self._call_options: Any = None
        self._step = 0
        self._steps_of_plan = 0
        self._cached: cache.Kept | None = None

    # The step, as the user calls it.

    def step(self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int = 1) -> Any:
        """Runs one training step, or a graph of `num_steps` of them.

        Raises:
            ValueError: something cannot be right, such as ranks that disagree; named.
            HorovodInternalError: a rank is gone, late, or gave up; the step was not completed.
            EngineError, tf.errors.OpError: the same call would fail again.
        """
        if self._world is not None and (self._was_reset or horovod.world() != self._world):
            self._begin_anew()
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
            if self.journal.phase is Phase.TRACE and not self._begin(args, kwargs):
                return self._alone(*args, **kwargs)
            return self._planned_step(partial(self._call, *args, **kwargs), num_steps)
        except BaseException as error:
            self.journal.stopped()
            # The other ranks wait for a step that will not come.
            if self._engine is not None:
                self._engine.abort(f"{type(error).__name__}: {error}")
            if engine_lib.is_lost_rank(error):
                raise horovod.internal_error(str(error)) from error
            raise

    @property
    def settled(self) -> bool:
        """Whether nothing is tried out or measured any more; the same step on every rank."""
        checked = self.journal.phase is Phase.RUN and self._steps_of_plan > _CHECKED_STEPS
        return checked or self.journal.phase is Phase.PASS_THROUGH

    # Before the first step.

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Meets the other ranks and traces. False where this process is alone."""
        world = self._world = horovod.world()
        horovod.call_on_reset(self._on_reset)
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
        if self._given is not None and horovod.is_elastic():
            self._set_aside_plan_of_others(self._given, world)
        self.journal.record(self._name)
        self.journal.busy(Phase.TRACE)
        self._engine = self._shared_engine(world)
        # First of all, so that what is wrong on one rank alone is not left for others to wait for.
        agree(self._engine, self._statement(world))
        self._check_lanes(self._engine)
        plan = self._given
        if plan is not None:
            self._check_plan_can_run(plan)
        concrete = self._call.get_concrete_function(*args, **kwargs)
        if not self._marked:
            raise ValueError(
                f"{self._name} computes no gradient of a trainable variable with"
                " tf.GradientTape, so there is nothing to all-reduce"
            )
        tensors = self._tensors()
        if plan is not None:
            _check_plan_fits(plan, tensors)
        held = variables.compared(concrete)
        if self.options.broadcast_variables:
            variables.broadcast(self._engine, held)
        agree(self._engine, {"variable": variables.digests(held)})
        self._start_tuning(tensors, world.size, str(concrete.structured_input_signature))
        return True

    def _shared_engine(self, world: horovod.World) -> engine_lib.Engine:
        running = engine_lib.running()
        if running is None:
            running = horovod.start_engine(
                world,
                options_lib.num_lanes(self.options),
                self.options.timeout_seconds,
                self.options.stall_warning_seconds,
            )
            atexit.register(self._close, running)
        return running

    def _close(self, engine: engine_lib.Engine) -> None:
        try:
            engine.close()
        except engine_lib.EngineError as error:  # what hangs must not keep the process
            self.journal.log.warning("closing: %s", error)

    def _on_reset(self) -> None:
        """Horovod's elastic mode has made a new job of the workers that there are now."""
        running = engine_lib.running()
        if running is not None:
            self._close(running)
        self._was_reset = True

    def _begin_anew(self) -> None:
        """The ranks are others than before: meets them, traces and measures again."""
        world = horovod.world()
        running = engine_lib.running()
        if running is not None and (running.rank, running.world_size) != (world.rank, world.size):
            self._close(running)
        self.__post_init__()

    def _set_aside_plan_of_others(self, plan: Plan, world: horovod.World) -> None:
        """An elastic job outlives the number of workers that a given plan was made for."""
        if plan.num_workers != world.size:
            self.journal.log.warning(
                "plan: made for %d workers, and there are %d now; measuring for another",
                plan.num_workers,
                world.size,
            )
            self._given = None

    def _check_lanes(self, engine: engine_lib.Engine) -> None:
        lanes = options_lib.num_lanes(self.options)
        if lanes > engine.num_lanes:
            raise ValueError(
                f"threads: {self._name} asks for {lanes}, but the engine that another function"
                f" has started has {engine.num_lanes} lanes; give both the same threads"
            )

    def _statement(self, world: horovod.World) -> dict[str, Any]:
        options = self.options
        return {
            "world size": world.size,
            "threads for NCCL": nccl_tuner.statement(),
            "version of TensorFlow": tf.__version__,
            "version of tf_libra": _package_version(),
            "machine": f"{platform.machine()}, {sys.byteorder} endian",
            "function": self._name,
            "strategy": repr(options.strategy),
            "plan": None if self._given is None else self._given.fingerprint,
            "broadcast_variables": options.broadcast_variables,
            "Grappler switched off": grappler.is_switched_off(),
        }

    def _on_traced(self, marked: tuple[MarkedGradient, ...]) -> None:
        """At the end of every trace: what is all-reduced must be the same everywhere."""
        self._marked = marked
        if marked in self._agreed or self._engine is None:
            return
        agree(
            self._engine,
            {
                "name of gradient": [one.name for one in marked],
                "gradient": {one.name: f"{one.dtype} {one.shape}" for one in marked},
            },
        )
        self._agreed.add(marked)

    def _tensors(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(m.name, m.num_bytes, m.dtype) for m in self._marked)

    def _circumstances(self, signature: str) -> dict[str, str]:
        """What measured times depend on, besides the model and the machines."""
        return {
            "tensorflow": tf.__version__,
            "tf_libra": _package_version(),
            "inputs": signature,
            "local_size": str(horovod.world().local_size),
            "intra_op_threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
            "inter_op_threads": str(tf.config.threading.get_inter_op_parallelism_threads()),
        }

    def _start_tuning(
        self, tensors: tuple[TensorSpec, ...], world_size: int, signature: str
    ) -> None:
        self.journal.phase = Phase.MEASURE
        if self._given is not None:
            self._enter_run(cache.Kept(self._given, None, None), "given")
        elif self._rank == 0:
            options = self.options
            self._cached = self.journal.load(
                tensors,
                world_size,
                self._circumstances(signature),
                partial(self._check_plan, tensors=tensors),
            )
            self._tuning = tune(
                tensors,
                options.strategy,
                world_size,
                options.budget,
                options.max_model_error,
                begins=self.journal.busy,
            )

    # One step.

    @property
    def _rank(self) -> int:
        assert self._engine is not None
        return self._engine.rank

    def _planned_step(self, call: Callable[[], Any], num_steps: int) -> Any:
        assert self._engine is not None
        self._step += 1
        self._engine.set_step(self._step)
        nccl_tuner.announce_step()
        traced = False
        if self.journal.phase in (Phase.MEASURE, Phase.SAMPLE):
            directive = self._next_directive()
            traced = directive.traced
            if directive.kept is not None:
                self._enter_run(directive.kept, "kept" if self._cached is not None else "made")
            else:
                self._enter(directive.phase, directive.plan)
        elif self._rank == 0 and self.journal.phase is Phase.RUN:
            checked = 0 < self._steps_of_plan <= _CHECKED_STEPS
            traced = checked or (self._steps_of_plan > 0 and self.journal.wants_check)
        start = time.perf_counter()
        result = self._execute(call, traced)
        seconds = time.perf_counter() - start
        # Neither what instantiates a plan nor what is traced is a usual step.
        usual = self._steps_of_plan > 0 and not traced
        self.journal.took(self._step, seconds / num_steps, usual=usual)
        self._steps_of_plan += 1
        self._step += num_steps - 1
        return result

    def _execute(self, call: Callable[[], Any], traced: bool) -> Any:
        assert self._engine is not None
        with grappler.calling(self._call_options):
            if self._steps_of_plan == 0:
                return self._first_call(call)
            if not (traced and self._rank == 0):
                return self._untraced(call)
            assert self._observer is not None
            result, observation = self._observer.traced(self._step, call)
        self._observation = observation
        if self.journal.phase is Phase.RUN:
            self._note_timeline(observation)
        return result

    def _untraced(self, call: Callable[[], Any]) -> Any:
        """A step that nobody traces; what rank 0 checks, other ranks write down as well."""
        keeps = self._rank > 0 and self.journal.wants_steps and self.journal.phase is Phase.RUN
        if not (keeps and self._steps_of_plan <= _CHECKED_STEPS):
            return call()
        assert self._engine is not None
        start_ns = time.time_ns()
        result = call()
        records = of_step(self._engine.drain_telemetry(), self._step)
        self.journal.executed(self._step, (start_ns, time.time_ns()), records)
        return result

    def _note_timeline(self, observation: Observation) -> None:
        self.journal.executed(self._step, observation.called_ns, observation.records, observation)
        if observation.production is not None:
            try:
                timeline = measured_timeline(observation.records, observation.production)
            except ValueError as error:  # a step that computes other gradients than the first
                self.journal.log.debug(
                    "step %d is not compared with the plan: %s", self._step, error
                )
            else:
                self.journal.measured(timeline)
        if self._steps_of_plan == _CHECKED_STEPS:
            self.journal.checked()

    def _first_call(self, call: Callable[[], Any]) -> Any:
        """The first call under a plan: TensorFlow instantiates the graph and runs the pass."""
        assert self._engine is not None and self._current is not None
        self._engine.drain_telemetry()
        if self._rank == 0:
            known = self._observers.get(self._current.fingerprint)
            if known is None:
                known = Observer(self._engine, self._current.tensor_names)
                self._observers[self._current.fingerprint] = known
                result = known.first(call)
            else:  # TensorFlow has instantiated this plan before, and leaves no graph again
                result = call()
            self._observer = known
        else:
            result = call()
        records = of_step(self._engine.drain_telemetry(), self._step)
        self._check_executed(self._current, records)
        return result

    def _next_directive(self) -> Directive:
        """Rank 0's judgement, known to all."""
        assert self._engine is not None
        message = None
        if self._tuning is not None:
            message = self._judge(self._tuning).to_message()
        directive = Directive.from_message(self._engine.broadcast(message))
        if directive.step != self._step:
            raise ValueError(
                f"rank {self._rank} is at step {self._step}, rank 0 at step {directive.step}: every"
                " rank must call the training step equally often"
            )
        return directive

    def _judge(self, tuning: Tuning) -> Directive:
        if self._cached is not None:
            return Directive(self._step, Phase.RUN, self._cached.plan, kept=self._cached)
        observation, self._observation = self._observation, None
        try:
            experiment: Experiment = tuning.send(observation)
        except StopIteration as finished:
            kept = self.journal.concluded(finished.value)
            return Directive(self._step, Phase.RUN, kept.plan, kept=kept)
        return Directive(self._step, experiment.phase, experiment.plan, experiment.traced)

    # Changes of plan and phase.

    def _enter(self, phase: Phase, plan: Plan) -> None:
        self.journal.entered(phase, self._step)
        if self._current is None or plan.fingerprint != self._current.fingerprint:
            self._apply(plan)

    def _enter_run(self, kept: cache.Kept, how: str) -> None:
        self._apply(kept.plan)
        self._tuning = None
        self.journal.in_force(kept, how, max(self._step, 1))
        assert self._engine is not None
        self.journal.clocks(self._engine.exchange_clocks())

    def _apply(self, plan: Plan) -> None:
        grappler.register(plan)
        self._current = plan
        self._call_options = grappler.call_options(plan)
        self._steps_of_plan = 0

    def _check_executed(self, plan: Plan, records: tuple[AllReduceRecord, ...]) -> None:
        """Warns if what was executed is not the plan."""
        if grappler.is_switched_off():
            return  # which was said at the start
        executed = {(r.group, r.num_threads, name) for r in records for name in r.tensor_names}
        asked = {
            (index, group.num_threads, plan.tensor_names[i])
            for index, group in enumerate(plan.groups)
            for i in range(group.start, group.stop)
            if plan.num_bytes[i] > 0
        }
        if executed >= asked and all(r.plan == grappler.plan_id(plan) for r in records):
            return
        self.journal.log.warning(
            "plan %s was not executed as it is: %d of %d tensors were all-reduced as planned;"
            " training is right, but slower. Reasons: %s",
            grappler.plan_id(plan),
            len(executed & asked),
            len(asked),
            "; ".join(grappler.report(plan).skipped[:5]) or "none given by the pass",
        )

    # Plans that were not made here.

    def _check_plan_can_run(self, plan: Plan) -> None:
        """Raises `ValueError` if the plan is for other workers or more lanes than there are."""
        assert self._engine is not None
        if plan.num_workers != self._engine.world_size:
            raise ValueError(
                f"plan: num_workers is {plan.num_workers}, but this job has"
                f" {self._engine.world_size} workers"
            )
        most = max(group.num_threads for group in plan.groups)
        if most > self._engine.num_lanes:
            raise ValueError(
                f"plan: num_threads is {most}, but the engine has {self._engine.num_lanes} lanes"
            )

    def _check_plan(self, plan: Plan, tensors: tuple[TensorSpec, ...]) -> None:
        self._check_plan_can_run(plan)
        _check_plan_fits(plan, tensors)


def _check_plan_fits(plan: Plan, tensors: tuple[TensorSpec, ...]) -> None:
    """Raises `ValueError` if the plan is of another model."""
    sizes = {tensor.name: tensor.num_bytes for tensor in tensors}
    dtypes = {tensor.name: tensor.dtype for tensor in tensors}
    planned = dict(zip(plan.tensor_names, plan.num_bytes, strict=True))
    for name, num_bytes in planned.items():
        if name not in sizes:
            raise ValueError(
                f"plan: tensor_names has {name!r}, of which this step computes no gradient; the"
                " plan is of another model"
            )
        if sizes[name] != num_bytes:
            raise ValueError(
                f"plan: num_bytes of {name!r} is {num_bytes}, but its gradient has {sizes[name]}"
            )
    for name, dtype in zip(plan.tensor_names, plan.dtypes or (), strict=False):
        if dtype != dtypes[name]:
            raise ValueError(
                f"plan: dtypes has {dtype!r} for {name!r}, but its gradient is {dtypes[name]}"
            )
    for name in sizes:
        if name not in planned:
            raise ValueError(f"plan: tensor_names lacks {name!r}; the plan is of another model")


def _package_version() -> str:
    return importlib.metadata.version("tf-libra")
