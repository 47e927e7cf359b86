"""Rank 0's decisions: the plan that each trial runs, and whether the active plan is kept."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tf_libra import config
from tf_libra.autotune import (
    Budget,
    DriftVerdict,
    PlanSource,
    Postponement,
    PostponingTuner,
    Retuner,
    TensorSpec,
    TrialResult,
    Tuner,
    TuningResult,
    WireFormat,
    postpone_trials,
    uses_warm_start,
)
from tf_libra.autotune.sampling_plans import with_row_bytes
from tf_libra.backends import engine as engine_lib
from tf_libra.coordination.control_plane import Control
from tf_libra.coordination.world import cores_per_worker
from tf_libra.profiling.profiler_session import find_profiler_conflict
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime import grappler
from tf_libra.runtime.directive import Decision, KeepPlan
from tf_libra.runtime.plan_activation import check_plan_can_run, check_plan_fits
from tf_libra.runtime.plan_cache import PlanCache
from tf_libra.specs.plan import Plan


class TuningCoordinator:
    """Decides for one set of gradients. Rank 0 alone has one; the other ranks follow."""

    def __init__(
        self,
        control: Control,
        options: config.DataParallelOptions,
        reporter: RunReporter,
        tensors: tuple[TensorSpec, ...],
        environment: Mapping[str, str],
        tuner: Callable[..., Tuner],
        can_shard: bool = False,
        whole_updates: Sequence[str] = (),
    ) -> None:
        """Reads the plan cache, and begins to tune if it has no result.

        Args:
            control: reaches the other ranks.
            options: the user's options.
            reporter: receives activities and drift checks.
            tensors: gradients that are all-reduced, in backward order.
            environment: conditions on which measured times depend, by name.
            tuner: called like `tf_libra.autotune.tune`.
            can_shard: whether updates of these gradients can be sharded.
            whole_updates: names of gradients whose updates cannot.
        """
        self._control = control
        self._options = options
        self._backend = options.backend
        self._reporter = reporter
        self._tensors = tensors
        self._make_tuner = tuner
        self._can_shard, self._whole_updates = can_shard, tuple(whole_updates)
        self._local_size = int(environment.get("local_size", "1"))
        self._retuner: Retuner | None = None
        self._cache = PlanCache.for_gradients(
            options.cache_dir,
            reporter.log,
            tensors,
            options.strategy,
            control.world_size,
            environment,
        )
        self._cached = self._cache.load(self._check_plan)
        self._wire: WireFormat | None = None
        if options.wire_dtype is not None and control.world_size > 1:
            seconds = engine_lib.rounding_seconds(options.wire_dtype, options.error_feedback)
            self._wire = WireFormat(options.wire_dtype, seconds)
        # Reading earlier results may take seconds, and other ranks would wait for it later.
        start: dict[str, Any] = {}
        if self._cached is None and uses_warm_start(options.strategy):
            start["find_warm_start"] = self._cache.nearest()
        self._tuner: PostponingTuner | None = self._new_tuner(options.budget, **start)

    @property
    def cache(self) -> PlanCache:
        """Plan cache of these gradients."""
        return self._cache

    def _check_plan(self, plan: Plan) -> None:
        check_plan_can_run(plan, self._control.world_size, self._backend)
        check_plan_fits(plan, self._tensors)

    def _new_tuner(self, budget: Budget, **more: Any) -> PostponingTuner:
        active_plan: Plan | None = more.get("active_plan")
        tensors = self._tensors
        if active_plan is not None:  # plans are compared by one profile
            planned = zip(active_plan.tensor_names, active_plan.num_bytes, strict=True)
            tensors = with_row_bytes(tensors, dict(planned))

        def make(pause: Postponement) -> Tuner:
            return self._make_tuner(
                tensors,
                self._backend.applicable(self._options.strategy),
                self._control.world_size,
                budget,
                self._options.tuning.max_model_error,
                clock=pause.clock,
                on_phase=self._reporter.on_activity,
                hops=self._backend.hops,
                workers_per_host=self._backend.workers_per_host(),
                cores=cores_per_worker(self._local_size),
                on_one_host=self._local_size == self._control.world_size,
                runs_streams=self._backend.runs_streams,
                leaves_records=self._backend.leaves_records,
                wire=self._wire,
                tries_gathers=self._can_shard and self._options.overlaps_calls,
                overlaps_calls=self._can_shard and self._options.shard_updates == "overlap",
                whole_updates=self._whole_updates,
                has_alternatives=self._options.tries_families,
                should_stop=lambda: pause.is_spent,
                **more,
            )

        # Trials of a retuning lie steps apart, so the time between them is not the trials'.
        limit = replace(budget, max_seconds=math.inf) if "active_plan" in more else budget
        return postpone_trials(
            make, Postponement(limit), find_profiler_conflict, self._reporter.log.info
        )

    def _new_retuning_tuner(self, active_plan: Plan) -> PostponingTuner:
        """Returns a tuner that leaves the active plan only for a clearly faster plan."""
        if self._cached is not None:
            self._cached = None  # the cached result is stale: tune as if there had been none
            start = self._cache.nearest()
            return self._new_tuner(
                self._options.budget, active_plan=active_plan, find_warm_start=start
            )
        # Retuning bursts may lie far apart; `retune_overhead` limits their cost.
        budget = Budget(self._options.budget.max_steps, math.inf)
        return self._new_tuner(budget, active_plan=active_plan)

    def decide(
        self, step: int, observation: TrialResult | None, is_running: bool
    ) -> tuple[Decision, PlanSource]:
        """Returns the decision for a step, and its source if it is a result.

        Args:
            step: number of the step.
            observation: result of the trial before, if there was one.
            is_running: whether a plan is active, so that this is a drift check.
        """
        decision: Decision
        if self._tuner is None:
            decision = self._check_drift(step) if is_running else self._next_trial(observation)
        elif self._cached is not None:
            return self._cached, PlanSource.CACHED
        else:
            try:
                decision = self._tuner.send(observation)
            except StopIteration as finished:
                decision = finished.value
        if isinstance(decision, TuningResult):
            decision = with_reported_updates(decision)
            self._cache.store(decision)
        return decision, PlanSource.TUNED

    def _check_drift(self, step: int) -> KeepPlan:
        assert self._retuner is not None
        found = self._retuner.check()
        self._reporter.on_drift_check(found, self._retuner.drift, step)
        return KeepPlan(
            then_try=found
            in (DriftVerdict.DRIFTED, DriftVerdict.CACHE_STALE, DriftVerdict.RETUNING)
        )

    def _next_trial(self, observation: TrialResult | None) -> Decision:
        assert self._retuner is not None
        trial = self._retuner.next_trial(observation)
        return KeepPlan() if trial is None else trial

    def on_activated(self, result: TuningResult, source: PlanSource, is_watched: bool) -> None:
        """Ends tuning, and begins to watch the active plan for drift.

        Args:
            result: the active result.
            source: source of the result.
            is_watched: whether drift checks follow.
        """
        self._tuner = None
        if not is_watched:
            self._retuner = None
        elif self._retuner is None:
            share = self._options.tuning.retune_overhead
            is_cached = source is PlanSource.CACHED
            self._retuner = Retuner(share, result, self._new_retuning_tuner, is_cached)

    def record_step(self, seconds: float, is_steady: bool, num_steps: int) -> None:
        """Records a call under the active plan.

        Args:
            seconds: seconds per step.
            is_steady: whether the call neither instantiated a graph nor was traced.
            num_steps: number of steps in the graph.
        """
        if self._retuner is None:
            return
        if is_steady:
            self._retuner.drift.record_step(seconds, num_steps)
        else:
            self._retuner.drift.record_trial(seconds)

    def record_trial(self, seconds: float) -> None:
        """Records the seconds of a step under a plan that is tried out."""
        if self._retuner is not None:
            self._retuner.drift.record_trial(seconds)


def with_reported_updates(result: TuningResult) -> TuningResult:
    """Returns a result that predicts its plan with the updates that the pass has left whole."""
    reported = {
        name
        for group in grappler.report(result.plan).latest.groups
        if group.whole
        for name in group.tensor_names
    }
    if reported <= {*result.whole_updates}:
        return result
    whole = tuple(dict.fromkeys((*result.whole_updates, *sorted(reported))))
    return replace(result, whole_updates=whole)
