"""The life of one set of gradients: measure, sample, fit, plan, run.

Rank 0 alone judges. While it tries things out, every step begins with its directive to all
ranks; once a plan is in force nobody sends anything but gradients.
"""

import importlib.metadata
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra import options as options_lib
from tf_libra.backends import engine as engine_lib
from tf_libra.backends import horovod
from tf_libra.backends.backend import Backend
from tf_libra.backends.control import Control
from tf_libra.model.plan import Plan
from tf_libra.model.telemetry import AllReduceRecord, of_step
from tf_libra.profiling.samples import measured_timeline
from tf_libra.records import cache
from tf_libra.session import grappler
from tf_libra.session.observing import Observer, timed
from tf_libra.story.journal import Journal
from tf_libra.tuning import Experiment, Observation, Phase, TensorSpec, Tuning, tune

# Steps under the plan that are traced, after the first, to compare with what was predicted.
_CHECKED_STEPS = 5


@dataclass(frozen=True)
class Directive:
    """What every rank does in the next step."""

    function: str
    step: int
    phase: Phase
    plan: Plan
    traced: bool = False
    kept: cache.Kept | None = None

    def to_message(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "function": self.function,
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
            message["function"],
            message["step"],
            Phase(message["phase"]),
            Plan.from_json(message["plan"]),
            message["traced"],
            None if kept is None else cache.Kept.from_json(kept),
        )


@dataclass
class Session:
    """One set of gradients of a training function: from measuring to the plan it runs under.

    Attributes:
        name: identity of the training function.
        control: reaches the other ranks.
        options: what the user asked for.
        journal: is told everything.
        tensors: the gradients that are all-reduced, in backward order.
        signature: of the function's inputs.
        given: a plan to follow without measuring.
    """

    name: str
    control: Control
    options: options_lib.Options
    journal: Journal
    tensors: tuple[TensorSpec, ...]
    signature: str
    given: Plan | None = None

    def __post_init__(self) -> None:
        self._tuning: Tuning | None = None
        self._observation: Observation | None = None
        self._observer: Observer | None = None
        self._observers: dict[str, Observer] = {}
        self._registered: dict[str, Plan] = {}
        self._current: Plan | None = None
        self._call_options: Any = None
        self._step = 0
        self._steps_of_plan = 0
        self._cached: cache.Kept | None = None
        self._start()

    @property
    def settled(self) -> bool:
        """Whether nothing is tried out or measured any more; the same step on every rank."""
        checked = self._steps_of_plan > _CHECKED_STEPS or self._current is None
        return self.journal.phase is Phase.RUN and checked

    def _start(self) -> None:
        if grappler.is_switched_off() or not self.tensors:
            # Nothing that could be tried out would have an effect.
            self.journal.phase = Phase.RUN
            return
        self.journal.phase = Phase.MEASURE
        if self.given is not None:
            self._enter_run(cache.Kept(self.given, None, None), "given")
        elif self._rank == 0:
            options, num_workers = self.options, self.control.world_size
            strategy = self._backend.applicable(options.strategy)
            self._cached = self.journal.load(
                self.tensors, num_workers, self._circumstances(), self._check_plan
            )
            self._tuning = tune(
                self.tensors,
                strategy,
                num_workers,
                options.budget,
                options.max_model_error,
                begins=self.journal.busy,
            )

    def _circumstances(self) -> dict[str, str]:
        """What measured times depend on, besides the model and the machines."""
        return {
            "tensorflow": tf.__version__,
            "tf_libra": package_version(),
            "engine": self.options.engine,
            "inputs": self.signature,
            "local_size": str(horovod.world().local_size),
            "intra_op_threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
            "inter_op_threads": str(tf.config.threading.get_inter_op_parallelism_threads()),
        }

    # One step.

    @property
    def _backend(self) -> Backend:
        return self.options.backend

    @property
    def _rank(self) -> int:
        return self.control.rank

    def step(self, number: int, call: Callable[[], Any], num_steps: int = 1) -> Any:
        """Runs the training function's step of this number, or `num_steps` of them in one graph."""
        self._step = number
        traced = False
        if self.journal.phase in (Phase.MEASURE, Phase.SAMPLE):
            directive = self._next_directive()
            traced = directive.traced
            if directive.kept is not None:
                self._enter_run(directive.kept, "kept" if self._cached is not None else "made")
            else:
                self._enter(directive.phase, directive.plan)
        elif self._rank == 0 and self._current is not None and num_steps == 1:
            checked = 0 < self._steps_of_plan <= _CHECKED_STEPS
            traced = checked or (self._steps_of_plan > 0 and self.journal.wants_check)
        start = time.perf_counter()
        result = self._execute(call, traced)
        seconds = time.perf_counter() - start
        # Neither what instantiates a plan nor what is traced is a usual step.
        usual = self._steps_of_plan > 0 and not traced
        self.journal.took(self._step, seconds / num_steps, usual=usual, num_steps=num_steps)
        self._steps_of_plan += 1
        return result

    def _execute(self, call: Callable[[], Any], traced: bool) -> Any:
        if self._current is None:
            return call()
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
        keeps = keeps and self._backend.leaves_records
        if not (keeps and self._steps_of_plan <= _CHECKED_STEPS):
            return call()
        result, called_ns = timed(call)
        records = of_step(self._backend.executed(), self._step)
        self.journal.executed(self._step, called_ns, records)
        return result

    def _note_timeline(self, observation: Observation) -> None:
        assert self._current is not None
        timeline = None
        if observation.production is not None and not observation.records:
            if any(self._current.num_bytes):
                self.journal.reduced_nothing()
        elif observation.production is not None:
            try:
                timeline = measured_timeline(observation.records, observation.production)
            except ValueError as error:  # a step that computes other gradients than the first
                self.journal.log.debug(
                    "step %d is not compared with the plan: %s", self._step, error
                )
        self.journal.executed(
            self._step, observation.called_ns, observation.records, observation, timeline
        )
        if self._steps_of_plan == _CHECKED_STEPS:
            self.journal.checked()

    def _first_call(self, call: Callable[[], Any]) -> Any:
        """The first call under a plan: TensorFlow instantiates the graph and runs the pass."""
        assert self._current is not None
        self._backend.executed()
        try:
            result = self._observed_first(self._current, call) if self._rank == 0 else call()
        except Exception as error:
            why = self._why_not_rewritten(self._current)
            if why:  # and so it did not do what the others did
                raise engine_lib.EngineError(f"{why}: {error}") from error
            raise
        records = of_step(self._backend.executed(), self._step)
        self._compare_rewrites(self._current)
        self._check_executed(self._current, records)
        return result

    def _observed_first(self, plan: Plan, call: Callable[[], Any]) -> Any:
        known = self._observers.get(plan.fingerprint)
        if known is None:
            known = Observer(self._backend, plan)
            self._observers[plan.fingerprint] = known
            result = known.first(call)
        else:  # TensorFlow has instantiated this plan before, and leaves no graph again
            result = call()
        self._observer = known
        return result

    def _why_not_rewritten(self, plan: Plan) -> str:
        """Why this rank's graph is not the plan's, in words; empty if it is."""
        graph = grappler.report(plan).latest
        if graph.in_force and graph.groups:
            return ""
        reasons = (
            "; ".join(graph.skipped[:5]) or "TensorFlow's Grappler gave up, or ran out of time"
        )
        return f"rank {self._rank} could not rewrite its graph by plan {plan.short_id} ({reasons})"

    def _compare_rewrites(self, plan: Plan) -> None:
        """Sees to it that what runs from here on is the same on every rank.

        Raises:
            EngineError: on every rank: one has another graph, or a rank is gone.
        """
        mine = [grappler.digest(plan), self._why_not_rewritten(plan)]
        everyone = self.control.all_gather(mine)
        for rank, (digest, _) in enumerate(everyone):
            if digest != everyone[0][0]:
                whys = [one for _, one in everyone if one]
                reason = "; ".join(whys) or f"rank {rank} groups other tensors than rank 0"
                raise engine_lib.EngineError(
                    f"the ranks do not run the same graph under plan {plan.short_id}: {reason}"
                )

    def _next_directive(self) -> Directive:
        """Rank 0's judgement, known to all."""
        message = None
        if self._tuning is not None:
            message = self._judge(self._tuning).to_message()
        directive = Directive.from_message(self.control.broadcast(message))
        if directive.function != self.name:
            raise ValueError(
                f"rank {self._rank} is at a step of {self.name}, rank 0 at one of"
                f" {directive.function}: every rank must call training functions in the same order"
            )
        if directive.step != self._step:
            raise ValueError(
                f"rank {self._rank} is at step {self._step}, rank 0 at step {directive.step}: every"
                " rank must call the training step equally often"
            )
        return directive

    def _judge(self, tuning: Tuning) -> Directive:
        if self._cached is not None:
            return Directive(self.name, self._step, Phase.RUN, self._cached.plan, kept=self._cached)
        observation, self._observation = self._observation, None
        try:
            experiment: Experiment = tuning.send(observation)
        except StopIteration as finished:
            kept = self.journal.concluded(finished.value)
            return Directive(self.name, self._step, Phase.RUN, kept.plan, kept=kept)
        return Directive(
            self.name, self._step, experiment.phase, experiment.plan, experiment.traced
        )

    # Changes of plan and phase.

    def _enter(self, phase: Phase, plan: Plan) -> None:
        self.journal.entered(phase, self._step)
        if self._current is None or plan.fingerprint != self._current.fingerprint:
            self._apply(plan)

    def _enter_run(self, kept: cache.Kept, how: str) -> None:
        self._apply(kept.plan)
        self._tuning = None
        self._release(all_but=kept.plan)
        self.journal.in_force(kept, how, max(self._step, 1))
        for warning in self._backend.warnings(kept.plan):
            self.journal.log.warning("%s", warning)
        self.journal.clocks(self.control.exchange_clocks())

    def close(self) -> None:
        """Forgets its plans; no step may follow."""
        self._release(all_but=None)

    def _release(self, all_but: Plan | None) -> None:
        """Forgets plans that no call is going to be made under."""
        kept = None if all_but is None else all_but.fingerprint
        for fingerprint in [one for one in self._registered if one != kept]:
            grappler.unregister(self._registered.pop(fingerprint))
            self._observers.pop(fingerprint, None)

    def _apply(self, plan: Plan) -> None:
        if plan.fingerprint not in self._registered:
            grappler.register(plan)
            self._registered[plan.fingerprint] = plan
        self._current = plan
        self._call_options = grappler.call_options(plan, self._backend.op)
        self._backend.apply(plan)
        self._steps_of_plan = 0

    def _check_executed(self, plan: Plan, records: tuple[AllReduceRecord, ...]) -> None:
        """Warns if what was executed is not the plan.

        For a step that all-reduces nothing, looks at what the pass has written.
        """
        executed = {(r.group, r.num_threads, name) for r in records for name in r.tensor_names}
        graph = grappler.report(plan).latest
        leaves_records = self._backend.leaves_records
        if not (leaves_records and records):
            written = graph.groups if graph.in_force else ()
            executed = {(g.index, g.num_threads, name) for g in written for name in g.tensor_names}
        asked = {
            (index, group.num_threads, plan.tensor_names[i])
            for index, group in enumerate(plan.groups)
            for i in range(group.start, group.stop)
            if plan.num_bytes[i] > 0
        }
        if executed >= asked and all(r.plan == plan.short_id for r in records):
            if asked and not records and leaves_records:
                self.journal.reduced_nothing()
            return
        self.journal.log.warning(
            "plan %s was not executed as it is: %d of %d tensors were all-reduced as planned;"
            " training is right, but slower. Reasons: %s",
            plan.short_id,
            len(executed & asked),
            len(asked),
            "; ".join(graph.skipped[:5]) or "none given by the pass",
        )

    def _check_plan(self, plan: Plan) -> None:
        check_plan_can_run(plan, self.control.world_size, self._backend)
        check_plan_fits(plan, self.tensors)


def check_plan_can_run(plan: Plan, num_workers: int, backend: Backend) -> None:
    """Raises `ValueError` if the plan is for other workers, or more than the backend can do now."""
    if plan.num_workers != num_workers:
        raise ValueError(
            f"plan: num_workers is {plan.num_workers}, but this job has {num_workers} workers"
        )
    backend.check_running(plan)


def check_plan_fits(plan: Plan, tensors: tuple[TensorSpec, ...]) -> None:
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


def package_version() -> str:
    """The version of this package."""
    return importlib.metadata.version("tf-libra")
