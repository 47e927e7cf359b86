"""The life of one set of gradients: measure, sample, fit, plan, run.

Rank 0 alone judges. While it tries things out, every step begins with its directive to all
ranks. Once a plan is active, ranks send each other nothing but gradients, except at drift checks
(`drift_monitor.py`).
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tf_libra import config
from tf_libra.autotune import (
    Budget,
    Pause,
    Phase,
    PlanSource,
    Postponed,
    PostponingTuner,
    Retuner,
    TensorSpec,
    Trial,
    TrialResult,
    Tuner,
    TuningResult,
    asks_for_a_start,
    postponing,
    tune,
)
from tf_libra.coordination.control_plane import Control, exchange_clocks
from tf_libra.profiling.overlap_samples import measured_timeline
from tf_libra.profiling.profiler_session import in_use
from tf_libra.reporting.records.graph_export import GroupNode
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime import grappler
from tf_libra.runtime.directive import Directive, KeepPlan
from tf_libra.runtime.drift_monitor import DriftMonitor
from tf_libra.runtime.plan_activation import PlanActivator, check_plan_can_run, check_plan_fits
from tf_libra.runtime.plan_cache import PlanCache
from tf_libra.runtime.protocol import TuningState
from tf_libra.runtime.step_profiler import CHECKED_STEPS, ProfilingPolicy, timed
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import of_step


class TuningSession:
    """One set of gradients of a training function: from measuring to the plan it runs under.

    Attributes:
        state: where in its life it is.
        reporter: reports everything.
    """

    def __init__(
        self,
        name: str,
        control: Control,
        options: config.Options,
        reporter: RunReporter,
        tensors: tuple[TensorSpec, ...],
        around: Mapping[str, str],
        given: Plan | None = None,
        tuner: Callable[..., Tuner] = tune,
    ) -> None:
        """Begins; what is kept from an earlier job is read here.

        Args:
            name: identity of the training function.
            control: reaches the other ranks.
            options: the user's options.
            reporter: reports everything.
            tensors: the gradients that are all-reduced, in backward order.
            around: circumstances, on which measured times depend.
            given: a plan to follow without measuring.
            tuner: called like `tune`, decides on rank 0 what is tried and what comes of it.
        """
        self.state = TuningState()
        self.reporter = reporter
        self._name = name
        self._control = control
        self._options = options
        self._tensors = tensors
        self._tuner = tuner
        self._backend = options.backend
        self._drawn = ""  # the plan whose graph was kept last
        self._applying = PlanActivator(control, self._backend, reporter)
        self._checking = ProfilingPolicy()
        self._tuning: PostponingTuner | None = None
        self._looks: DriftMonitor | None = None  # where a plan may be left for another
        self._tries_next = False
        self._keeping: PlanCache | None = None
        self._kept: TuningResult | None = None
        self._observation: TrialResult | None = None
        self._step = 0
        self._instantiated: set[tuple[str, int]] = set()  # by plan, and how many steps a graph has
        if grappler.is_switched_off() or not tensors:
            # Nothing that could be tried out would have an effect.
            self._begin(Phase.RUN)
            return
        self._begin(Phase.MEASURE)
        if given is not None:
            self._enter_run(TuningResult(given), PlanSource.GIVEN)
        elif control.rank == 0:
            self._begin_tuning(around)

    def _begin(self, phase: Phase) -> None:
        self.state = TuningState(phase)
        self.reporter.on_phase(phase)

    def _begin_tuning(self, around: Mapping[str, str]) -> None:
        options, num_workers = self._options, self._control.world_size
        self._keeping = PlanCache.of(
            options.cache_dir,
            self.reporter.log,
            self._tensors,
            options.strategy,
            num_workers,
            around,
        )
        self._kept = self._keeping.load(self._check_plan)
        more: dict[str, Any] = {}
        if self._kept is None and asks_for_a_start(options.strategy):
            more["start"] = self._keeping.nearest()
        self._tuning = self._new_tuning(options.budget, **more)

    def _new_tuning(self, budget: Budget, **more: Any) -> PostponingTuner:
        def make(pause: Pause) -> Tuner:
            return self._tuner(
                self._tensors,
                self._backend.applicable(self._options.strategy),
                self._control.world_size,
                budget,
                self._options.tuning.max_model_error,
                clock=pause.clock,
                begins=self.reporter.on_activity,
                hops=self._backend.hops,
                workers_per_host=self._backend.workers_per_host(),
                runs_streams=self._backend.runs_streams,
                is_over=lambda: pause.is_spent,
                **more,
            )

        # Trials of a retuning lie steps apart, so the time between them is not the profile's.
        limit = replace(budget, max_seconds=math.inf) if "in_force" in more else budget
        return postponing(make, Pause(limit), in_use, self.reporter.log.info)

    def _tune_again(self, in_force: Plan) -> PostponingTuner:
        if self._kept is not None and self._keeping is not None:
            self._kept = None  # what it has spared follows
            start = self._keeping.nearest()
            return self._new_tuning(self._options.budget, in_force=in_force, start=start)
        # Doses may lie far apart; what they cost is limited by their share.
        budget = Budget(self._options.tuning.max_steps, math.inf)
        return self._new_tuning(budget, in_force=in_force)

    @property
    def settled(self) -> bool:
        """Returns whether trials and measurements have ended; the same step on every rank."""
        applying = self._applying
        checked = applying.plan is None or applying.num_calls > CHECKED_STEPS
        return self.state.is_running and checked

    # One step.

    def step(self, number: int, call: Callable[[], Any], num_steps: int = 1) -> Any:
        """Runs the training function's step of this number, or `num_steps` of them in one graph."""
        self._step = number
        traced = False
        if self.state.is_tuning or (self._looks is not None and self._looks.is_due):
            traced = self._follow(self._next_directive())
        elif self._control.rank == 0 and self._applying.plan is not None and num_steps == 1:
            traced = self._checking.wants(self._applying.num_calls, self._is_written)
        plan = self._applying.plan
        graph = "" if plan is None else plan.fingerprint, num_steps
        is_first = self._applying.num_calls == 0 or graph not in self._instantiated
        start = time.perf_counter()
        result = self._execute(call, traced)
        seconds = (time.perf_counter() - start) / num_steps
        self._instantiated.add(graph)
        # Neither what instantiates a graph under a plan nor what is traced is a usual step.
        usual = not (is_first or traced)
        self._checking.took(seconds, usual, traced)
        self.reporter.on_step_end(number, seconds, is_steady=usual, num_steps=num_steps)
        self._note_for_looks(seconds, usual, num_steps)
        return result

    def _execute(self, call: Callable[[], Any], traced: bool) -> Any:
        if self._is_written_down():
            return self._executed_untraced(call)
        tries = self.state.is_tuning
        result, self._observation = self._applying.call(self._step, call, traced, observed=tries)
        if self._observation is not None and self.state.is_running:
            self._tell_timeline(self._observation)
        return result

    @property
    def _is_written(self) -> bool:
        # The option, not what becomes of the files: a disk that is full changes no step.
        return self._options.logdir is not None and not self.reporter.is_closed

    def _is_written_down(self) -> bool:
        """Returns whether rank 0 checks this step, which this rank then records without tracing."""
        elsewhere = self._control.rank > 0 and self.state.is_running and self._is_written
        has_plan = self._applying.plan is not None and self._backend.leaves_records
        return elsewhere and has_plan and 0 < self._applying.num_calls <= CHECKED_STEPS

    def _executed_untraced(self, call: Callable[[], Any]) -> Any:
        (result, _), called_ns = timed(lambda: self._applying.call(self._step, call, traced=False))
        records = of_step(self._backend.executed(), self._step)
        self.reporter.on_step_telemetry(self._step, called_ns, records)
        return result

    def _tell_timeline(self, observation: TrialResult) -> None:
        assert self._applying.plan is not None
        timeline = None
        if observation.production is not None and not observation.records:
            if any(self._applying.plan.num_bytes):
                self.reporter.on_step_without_reductions()
        elif observation.production is not None:
            try:
                timeline = measured_timeline(observation.records, observation.production)
            except ValueError as error:  # a step that computes other gradients than the first
                self.reporter.log.debug(
                    "step %d is not compared with the plan: %s", self._step, error
                )
        self.reporter.on_step_telemetry(
            self._step, observation.called_ns, observation.records, observation, timeline
        )
        if self._applying.num_calls == 1 + CHECKED_STEPS:
            self.reporter.on_plan_measured()

    # What is done next.

    def _next_directive(self) -> Directive:
        """Rank 0's judgement, known to all."""
        message = None
        if self._control.rank == 0:
            directive = Directive(self._name, self._step, *self._judge())
            message = directive.to_message()
        place = f"step {self._step} of {self._name}"
        message = self._control.broadcast(message, kind="the directive of a step", place=place)
        directive = Directive.from_message(message)
        directive.check(self._name, self._step, self._control.rank)
        return directive

    def _judge(self) -> tuple[Trial | TuningResult | KeepPlan | Postponed, PlanSource]:
        observation, self._observation = self._observation, None
        what: Trial | TuningResult | KeepPlan | Postponed
        if self._tuning is None:
            assert self._looks is not None
            is_look = self.state.is_running
            what = self._looks.look(self._step) if is_look else self._looks.next(observation)
        elif self._kept is not None:
            return self._kept, PlanSource.KEPT
        else:
            try:
                what = self._tuning.send(observation)
            except StopIteration as finished:
                what = finished.value
        if isinstance(what, TuningResult) and self._keeping is not None:
            self._keeping.store(what)
        return what, PlanSource.MADE

    def _follow(self, directive: Directive) -> bool:
        """Does as all ranks do; returns whether rank 0 observes the step."""
        what = directive.what
        if isinstance(what, Trial):
            self._enter(what)
            return what.traced
        if isinstance(what, KeepPlan):
            self._go_on(what)
            return False
        if isinstance(what, Postponed):
            return False
        self._enter_run(what, directive.origin)
        return False

    def _enter(self, experiment: Trial) -> None:
        self.state = replace(self.state, phase=experiment.phase)
        self.reporter.on_step_begin(
            experiment.phase, self._step, is_retuning=self._looks is not None
        )
        current = self._applying.plan
        if current is None or experiment.plan.fingerprint != current.fingerprint:
            self._applying.apply(experiment.plan, anew=False)

    def _enter_run(self, conclusion: TuningResult, origin: PlanSource) -> None:
        self._applying.apply(conclusion.plan)
        self._tuning = None
        self._begin_looks(conclusion, origin)
        self._checking = ProfilingPolicy()
        self.state = TuningState(Phase.RUN, conclusion, origin)
        self.reporter.on_plan_activated(conclusion, origin, max(self._step, 1))
        for warning in self._backend.warnings(conclusion.plan):
            self.reporter.log.warning("%s", warning)
        self.reporter.on_clock_exchange(exchange_clocks(self._control))

    def _begin_looks(self, conclusion: TuningResult, origin: PlanSource) -> None:
        share = self._options.tuning.again_share
        is_kept = origin is PlanSource.KEPT
        # What was measured then tells whether a kept plan still is one for this network.
        is_watched = self._options.strategy.races or (is_kept and conclusion.race is not None)
        if origin is PlanSource.GIVEN or not is_watched or share == 0:
            self._looks = None
            self._applying.release(all_but=conclusion.plan)
            return
        # What was tried stays known, to be tried again: TensorFlow keeps its graphs anyway.
        if self._looks is None:
            again = None
            if self._control.rank == 0:
                again = Retuner(share, conclusion, self._tune_again, is_kept)
            self._looks = DriftMonitor(again, self.reporter)
        self._looks.begin()

    def _go_on(self, how: KeepPlan) -> None:
        """Runs this step under the active plan; trials, if any, begin with the next."""
        assert self._looks is not None and self.state.conclusion is not None
        plan = self.state.conclusion.plan
        if self._applying.plan is None or self._applying.plan.fingerprint != plan.fingerprint:
            self._applying.apply(plan, anew=False)
        self.state = replace(self.state, phase=Phase.RUN)
        self.reporter.on_step_begin(Phase.RUN, self._step, is_retuning=True)
        self._looks.begin()
        self._tries_next = how.then_try

    def keep_graph(self, step: int, graph: Any) -> None:
        """Reports, once for each active plan, what the plan has made of the step's graph."""
        conclusion = self.state.conclusion
        if conclusion is None or not self._is_written or self._control.rank > 0:
            return
        plan = conclusion.plan
        if plan.fingerprint == self._drawn:
            return
        self._drawn = plan.fingerprint
        nodes = [
            GroupNode(one.node, one.index, one.num_threads, one.copy, one.tensor_names)
            for one in grappler.report(plan).latest.groups
        ]
        self.reporter.on_graph(step, graph, nodes)

    def _note_for_looks(self, seconds: float, usual: bool, num_steps: int) -> None:
        if self._looks is None:
            return
        if self.state.is_running:
            self._looks.ran(seconds, usual, num_steps)
        else:
            self._looks.tried(seconds)
        if self._tries_next:
            self._tries_next = False
            self.state = replace(self.state, phase=Phase.MEASURE)

    def close(self) -> None:
        """Forgets its plans; no step may follow."""
        self._applying.release(all_but=None)

    def _check_plan(self, plan: Plan) -> None:
        check_plan_can_run(plan, self._control.world_size, self._backend)
        check_plan_fits(plan, self._tensors)
