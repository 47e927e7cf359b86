"""Life of one set of gradients: measure, sample, fit, plan, run.

Rank 0 alone decides (`tuning_coordinator.py`). During trials, every step begins with its directive
to all ranks. Under an active plan, ranks exchange only gradients, except at drift checks: rank 0
decides, at the same step on every rank, whether to retune.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tf_libra import config
from tf_libra.autotune import (
    STEPS_PER_DRIFT_CHECK,
    Phase,
    PlanSource,
    Postponed,
    TensorSpec,
    Trial,
    TrialResult,
    Tuner,
    TuningResult,
    tune,
)
from tf_libra.coordination.control_plane import Control, exchange_clocks
from tf_libra.profiling.overlap_samples import measured_timeline
from tf_libra.reporting.records.graph_export import GroupNode
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime import grappler
from tf_libra.runtime.directive import Directive, KeepPlan
from tf_libra.runtime.plan_activation import PlanActivator
from tf_libra.runtime.plan_cache import PlanCache
from tf_libra.runtime.protocol import TuningState
from tf_libra.runtime.step_profiler import CHECKED_STEPS, ProfilingPolicy, timed
from tf_libra.runtime.tuning_coordinator import TuningCoordinator
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import gathers_among, records_of_step


class TuningSession:
    """One set of gradients of a training function, on one rank.

    Attributes:
        state: tuning state; determines what the next step does.
        reporter: receives all events.
    """

    def __init__(
        self,
        name: str,
        control: Control,
        options: config.DataParallelOptions,
        reporter: RunReporter,
        tensors: tuple[TensorSpec, ...],
        environment: Mapping[str, str],
        user_plan: Plan | None = None,
        tuner: Callable[..., Tuner] = tune,
        weights: Mapping[str, int] | None = None,
    ) -> None:
        """Begins; rank 0 reads the plan cache.

        Args:
            name: identity of the training function.
            control: reaches the other ranks.
            options: the user's options.
            reporter: receives all events.
            tensors: gradients that are all-reduced, in backward order.
            environment: conditions on which measured times depend, by name.
            user_plan: the user's plan, which needs no tuning.
            tuner: called like `tf_libra.autotune.tune`, makes the tuner of rank 0.
            weights: inputs of the trace that hold the weights of gradients whose updates can be
                sharded, by gradient; None if none can.
        """
        self.state = TuningState()
        self.reporter = reporter
        self._name = name
        self._control = control
        self._options = options
        self._backend = options.backend
        self._activator = PlanActivator(control, self._backend, reporter, weights)
        self._profiling = ProfilingPolicy()
        self._coordinator: TuningCoordinator | None = None
        # Whether drift checks may end the active plan; calls under it since the last one.
        self._is_watched = False
        self._calls_since_check = 0
        self._tries_next = False
        self._observation: TrialResult | None = None
        self._step = 0
        self._instantiated: set[tuple[str, str, int]] = set()  # plans, shardings, steps
        self._recorded_graph = ""  # fingerprint of the plan whose graph was recorded last
        if grappler.is_switched_off() or not tensors:
            # No trial could have an effect.
            self._begin(Phase.RUN)
            return
        self._begin(Phase.MEASURE)
        if user_plan is not None:
            self._activate(TuningResult(user_plan), PlanSource.USER)
        elif control.rank == 0:
            whole = [tensor.name for tensor in tensors if weights and tensor.name not in weights]
            self._coordinator = TuningCoordinator(
                control, options, reporter, tensors, environment, tuner, bool(weights), whole
            )

    def _begin(self, phase: Phase) -> None:
        self.state = TuningState(phase)
        self.reporter.on_phase(phase)

    @property
    def settled(self) -> bool:
        """Returns whether trials and measurements have ended; the same step on every rank."""
        activator = self._activator
        checked = activator.plan is None or activator.calls_under_plan > self._num_checked
        return self.state.is_running and checked

    @property
    def _num_checked(self) -> int:
        """Number of steps under the active plan that are traced, after its first one."""
        return 1 if self.state.origin is PlanSource.CACHED else CHECKED_STEPS

    @property
    def cache(self) -> PlanCache | None:
        """Plan cache of these gradients, on rank 0; None on other ranks, and without tuning."""
        return None if self._coordinator is None else self._coordinator.cache

    # One step.

    def step(
        self,
        number: int,
        call: Callable[[], Any],
        num_steps: int = 1,
        shard: Callable[[bool], str] = lambda can_shard: "",
    ) -> Any:
        """Runs one step of the training function.

        Args:
            number: number of the step, or of the first step in the graph.
            call: executes the graph.
            num_steps: number of steps in the graph.
            shard: prepares for the call, given whether it may shard updates; returns the id of the
                sharding, or nothing.
        """
        self._step = number
        traced = False
        if self.state.is_tuning or (
            self._is_watched and self._calls_since_check >= STEPS_PER_DRIFT_CHECK
        ):
            traced = self._follow(self._next_directive())
        elif self._control.rank == 0 and self._activator.plan is not None and num_steps == 1:
            traced = self._profiling.should_trace(
                self._activator.calls_under_plan, self._is_recorded, self._num_checked
            )
        plan = self._activator.plan
        sharding = shard(plan is not None and self._shards(plan))
        graph = "" if plan is None else plan.fingerprint, sharding, num_steps
        is_first = self._activator.calls_under_plan == 0 or graph not in self._instantiated
        start = time.perf_counter()
        result = self._execute(call, traced, sharding)
        seconds = (time.perf_counter() - start) / num_steps
        self._instantiated.add(graph)
        # A step that instantiates a graph under a plan, or is traced, takes longer than usual.
        is_steady = not (is_first or traced)
        self._profiling.record(seconds, is_steady, traced)
        self.reporter.on_step_end(number, seconds, is_steady=is_steady, num_steps=num_steps)
        self._record_for_drift(seconds, is_steady, num_steps)
        return result

    def _shards(self, plan: Plan) -> bool:
        """Returns whether the next call may shard updates.

        The cost model is fitted to whole all-reduces. Steps of a search or race run like those
        under an active plan, so that a graph is instantiated once for both.
        """
        if self._options.shard_updates == "auto":
            return bool(plan.gathers)
        return self.state.is_running or self.state.phase in (Phase.SEARCH, Phase.RACE)

    def _execute(self, call: Callable[[], Any], traced: bool, sharding: str) -> Any:
        if self._is_recorded_untraced():
            return self._execute_untraced(call, sharding)
        tries = self.state.is_tuning
        result, self._observation = self._activator.call(
            self._step, call, traced, observed=tries, sharding=sharding
        )
        if self._observation is not None and self.state.is_running:
            self._report_timeline(self._activator.plan, self._observation)
        return result

    @property
    def _is_recorded(self) -> bool:
        # Depends on the requested logdir, not on whether writing succeeds, so that a full disk
        # cannot change the schedule.
        return self._options.logdir is not None and not self.reporter.is_closed

    def _is_recorded_untraced(self) -> bool:
        """Returns whether rank 0 traces this step, which this rank records without a trace."""
        elsewhere = self._control.rank > 0 and self.state.is_running and self._is_recorded
        has_plan = self._activator.plan is not None and self._backend.leaves_records
        return elsewhere and has_plan and 0 < self._activator.calls_under_plan <= self._num_checked

    def _execute_untraced(self, call: Callable[[], Any], sharding: str) -> Any:
        (result, _), called_ns = timed(
            lambda: self._activator.call(self._step, call, traced=False, sharding=sharding)
        )
        executed = self._backend.executed()
        records = records_of_step(executed, self._step)
        gathers = gathers_among(executed)
        self.reporter.on_step_telemetry(self._step, called_ns, records, gathers=gathers)
        return result

    def _report_timeline(self, plan: Plan | None, observation: TrialResult) -> None:
        assert plan is not None
        timeline = None
        if observation.production is not None and not observation.records:
            if any(plan.num_bytes):
                self.reporter.on_step_without_reductions()
        elif observation.production is not None:
            try:
                timeline = measured_timeline(observation.records, observation.production)
            except ValueError as error:  # a step that computes other gradients than the first
                self.reporter.log.debug(
                    "step %d is not compared with the plan: %s", self._step, error
                )
        self.reporter.on_step_telemetry(
            self._step,
            observation.called_ns,
            observation.records,
            observation,
            timeline,
            observation.gathers,
        )
        if self._activator.calls_under_plan == 1 + self._num_checked:
            self.reporter.on_plan_measured()

    def _record_for_drift(self, seconds: float, is_steady: bool, num_steps: int) -> None:
        if not self._is_watched:
            return
        if self.state.is_running:
            self._calls_since_check += 1
            if self._coordinator is not None:
                self._coordinator.record_step(seconds, is_steady, num_steps)
        elif self._coordinator is not None:
            self._coordinator.record_trial(seconds)
        if self._tries_next:
            self._tries_next = False
            self.state = replace(self.state, phase=Phase.MEASURE)

    def record_graph(self, step: int, graph: Any) -> None:
        """Records, once per active plan, the step's graph with the plan's groups.

        Args:
            step: number of the step.
            graph: TensorFlow's graph of the trace.
        """
        conclusion = self.state.conclusion
        if conclusion is None or not self._is_recorded or self._control.rank > 0:
            return
        plan = conclusion.plan
        if plan.fingerprint == self._recorded_graph:
            return
        self._recorded_graph = plan.fingerprint
        nodes = [
            GroupNode(group.node, group.index, group.num_threads, group.copy, group.tensor_names)
            for group in grappler.report(plan).latest.groups
        ]
        self.reporter.on_graph(step, graph, nodes)

    # Directives, which all ranks follow.

    def _next_directive(self) -> Directive:
        """Returns rank 0's decision, which it broadcasts."""
        message = None
        if self._coordinator is not None:
            observation, self._observation = self._observation, None
            decision, source = self._coordinator.decide(
                self._step, observation, self.state.is_running
            )
            message = Directive(self._name, self._step, decision, source).to_message()
        sync_point = f"step {self._step} of {self._name}"
        message = self._control.broadcast(
            message, kind="the directive of a step", sync_point=sync_point
        )
        directive = Directive.from_message(message)
        directive.check(self._name, self._step, self._control.rank)
        return directive

    def _follow(self, directive: Directive) -> bool:
        """Follows a directive; returns whether rank 0 traces the step."""
        decision = directive.what
        if isinstance(decision, Trial):
            self._try(decision)
            return decision.traced
        if isinstance(decision, KeepPlan):
            self._keep_plan(decision)
        elif not isinstance(decision, Postponed):
            self._activate(decision, directive.origin)
        return False

    def _try(self, trial: Trial) -> None:
        self.state = replace(self.state, phase=trial.phase)
        self.reporter.on_step_begin(trial.phase, self._step, is_retuning=self._is_watched)
        self._switch_to(trial.plan)

    def _switch_to(self, plan: Plan) -> None:
        current = self._activator.plan
        if current is None or plan.fingerprint != current.fingerprint:
            self._activator.activate(plan, reset=False)

    def _activate(self, conclusion: TuningResult, source: PlanSource) -> None:
        """Makes a result's plan the active one, from this step on."""
        self._activator.activate(conclusion.plan)
        self._watch_for_drift(conclusion, source)
        self._profiling = ProfilingPolicy()
        self.state = TuningState(Phase.RUN, conclusion, source)
        self.reporter.on_plan_activated(conclusion, source, max(self._step, 1))
        for warning in self._backend.warnings(conclusion.plan):
            self.reporter.log.warning("%s", warning)
        self.reporter.on_clock_exchange(exchange_clocks(self._control))

    def _watch_for_drift(self, conclusion: TuningResult, source: PlanSource) -> None:
        is_cached = source is PlanSource.CACHED
        # The measured trials of a cached result show whether it still fits this network.
        is_comparable = self._options.strategy.races or (is_cached and conclusion.race is not None)
        is_limited = self._options.tuning.retune_overhead == 0
        self._is_watched = is_comparable and not is_limited and source is not PlanSource.USER
        self._calls_since_check = 0
        if not self._is_watched:
            # Otherwise plans stay registered, to be tried again: TensorFlow keeps their graphs.
            self._activator.release(all_but=conclusion.plan)
        if self._coordinator is not None:
            self._coordinator.on_activated(conclusion, source, self._is_watched)

    def _keep_plan(self, decision: KeepPlan) -> None:
        """Runs this step under the active plan; trials, if any, begin with the next."""
        assert self.state.conclusion is not None
        self._switch_to(self.state.conclusion.plan)
        self.state = replace(self.state, phase=Phase.RUN)
        self.reporter.on_step_begin(Phase.RUN, self._step, is_retuning=True)
        self._calls_since_check = 0
        self._tries_next = decision.then_try

    def close(self) -> None:
        """Releases all plans; no step may follow."""
        self._activator.release(all_but=None)
