"""Activation of plans for the calls of one set of gradients, on all ranks alike."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_libra.autotune import TensorSpec, TrialResult
from tf_libra.backends.backend import Backend
from tf_libra.coordination.control_plane import Control, EngineError
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime import grappler
from tf_libra.runtime.step_profiler import StepProfiler
from tf_libra.specs.backward_profile import is_rows, item_bytes
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord, records_of_step

# Phrase by which a log tells of an active plan that the executed graph does not follow.
NOT_EXECUTED = "was not executed as it is"


class PlanActivator:
    """Makes calls under one plan after the other.

    Attributes:
        plan: plan of the next call; None before the first plan.
    """

    def __init__(
        self,
        control: Control,
        backend: Backend,
        reporter: RunReporter,
        weights: Mapping[str, int] | None = None,
    ) -> None:
        """Begins without a plan.

        Args:
            control: reaches the other ranks.
            backend: executes all-reduces.
            reporter: receives deviations from the plan.
            weights: input of the trace that holds each gradient's weight; None if unknown.
        """
        self._control = control
        self._backend = backend
        self._reporter = reporter
        self._weights = weights or {}
        self.plan: Plan | None = None
        # By plan and sharding.
        self._num_calls: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._registered: dict[str, Plan] = {}
        self._profilers: dict[str, StepProfiler] = {}
        self._call_options: dict[str, Any] = {}  # of the plan, by sharding

    @property
    def calls_under_plan(self) -> int:
        """Number of calls under the plan since `activate` last reset it."""
        return self._num_calls[self._key].total()

    @property
    def _key(self) -> str:
        return "" if self.plan is None else self.plan.fingerprint

    def activate(self, plan: Plan, reset: bool = True) -> None:
        """Makes the next calls run under a plan.

        Args:
            plan: a plan for these gradients.
            reset: whether to count calls under the plan from 0.
        """
        if plan.fingerprint not in self._registered:
            grappler.register(plan)
            self._registered[plan.fingerprint] = plan
        self.plan = plan
        self._call_options = {}
        self._backend.apply(plan)
        if reset:
            self._num_calls.pop(self._key, None)

    def release(self, all_but: Plan | None) -> None:
        """Unregisters plans under which no call will be made."""
        excepted = None if all_but is None else all_but.fingerprint
        for fingerprint in [other for other in self._registered if other != excepted]:
            grappler.unregister(self._registered.pop(fingerprint))
            self._profilers.pop(fingerprint, None)
            self._num_calls.pop(fingerprint, None)

    def call(
        self,
        step: int,
        function: Callable[[], Any],
        traced: bool,
        observed: bool = False,
        sharding: str = "",
    ) -> tuple[Any, TrialResult | None]:
        """Makes a call under the plan, or without one before the first plan.

        Args:
            step: number of the step.
            function: makes the call.
            traced: whether rank 0 traces the call. The first call under a plan and a sharding is
                never traced.
            observed: whether rank 0 records, without a trace, when the call and its all-reduces
                ran.
            sharding: id of the sharding of updates; empty if every rank updates all.

        Returns:
            The call's result, and the observation if the call was traced or observed.

        Raises:
            EngineError: on every rank: the ranks would not run the same graph, or one is gone.
        """
        called = self._called(step, function, traced, observed, sharding)
        self._num_calls[self._key][sharding] += 1  # a call that failed does not count
        return called

    def _called(
        self, step: int, function: Callable[[], Any], traced: bool, observed: bool, sharding: str
    ) -> tuple[Any, TrialResult | None]:
        if self.plan is None:
            return function(), None
        if sharding not in self._call_options:
            self._call_options[sharding] = grappler.call_options(
                self.plan, self._backend.op, sharding
            )
        with grappler.calling(self._call_options[sharding]):
            if self._num_calls[self._key][sharding] == 0:
                return self._first(self.plan, step, function), None
            if traced and self._control.rank == 0:
                return self._profilers[self.plan.fingerprint].traced(step, function)
            if observed and self._control.rank == 0:
                return self._profilers[self.plan.fingerprint].timed(step, function)
            return function(), None

    def _first(self, plan: Plan, step: int, function: Callable[[], Any]) -> Any:
        """Makes the first call, in which TensorFlow instantiates the graph and runs the pass."""
        self._backend.executed()
        try:
            result = self._profiled_first(plan, function)
        except Exception as error:
            reason = self._why_not_rewritten(plan)
            if reason:  # this rank did not run the graph that the others ran
                raise EngineError(f"{reason}: {error}") from error
            raise
        records = records_of_step(self._backend.executed(), step)
        self._compare_rewrites(plan)
        self._check_executed(plan, records)
        return result

    def _profiled_first(self, plan: Plan, function: Callable[[], Any]) -> Any:
        known = self._profilers.get(plan.fingerprint)
        if self._control.rank > 0 or (known is not None and known.has_graph):
            # TensorFlow shows the graph of a plan only when it instantiates the graph.
            return function()
        profiler = StepProfiler(self._backend, plan, self._weights)
        self._profilers[plan.fingerprint] = profiler
        return profiler.first(function)

    def _why_not_rewritten(self, plan: Plan) -> str:
        """Returns why this rank's graph does not follow the plan; empty if it does."""
        graph = grappler.report(plan).latest
        if graph.in_force and graph.groups:
            return ""
        reasons = (
            "; ".join(graph.skipped[:5]) or "TensorFlow's Grappler gave up, or ran out of time"
        )
        return (
            f"rank {self._control.rank} could not rewrite its graph by plan {plan.short_id}"
            f" ({reasons})"
        )

    def _compare_rewrites(self, plan: Plan) -> None:
        """Checks that all ranks run the same graph from now on.

        Raises:
            EngineError: on every rank: a rank has another graph, or is gone.
        """
        mine = [grappler.digest(plan), self._why_not_rewritten(plan)]
        everyone = self._control.all_gather(mine)
        for rank, (digest, _) in enumerate(everyone):
            if digest != everyone[0][0]:
                reasons = [theirs for _, theirs in everyone if theirs]
                reason = "; ".join(reasons) or f"rank {rank} groups other tensors than rank 0"
                raise EngineError(
                    f"the ranks do not run the same graph under plan {plan.short_id}: {reason}"
                )

    def _check_executed(self, plan: Plan, records: tuple[AllReduceRecord, ...]) -> None:
        """Logs a warning if the executed all-reduces deviate from the plan.

        A tensor that this step did not reach, such as one in a branch that was not taken, counts as
        executed if the pass has grouped it. All-reduces of unplanned tensors, such as the gradient
        of an average (`inner_gradients="average"`), are no deviation.
        """
        executed = {(r.group, r.num_threads, name) for r in records for name in r.tensor_names}
        graph = grappler.report(plan).latest
        leaves_records = self._backend.leaves_records
        written = graph.groups if graph.in_force else ()
        executed |= {(g.index, g.num_threads, name) for g in written for name in g.tensor_names}
        requested = {
            (index, group.num_threads, plan.tensor_names[i])
            for index, group in enumerate(plan.groups)
            for i in range(group.start, group.stop)
            if plan.num_bytes[i] > 0
        }
        unplanned = {name for r in records if r.plan != plan.short_id for name in r.tensor_names}
        done = {planned for planned in executed & requested if planned[2] not in unplanned}
        if done == requested:
            if requested and not records and leaves_records:
                self._reporter.on_step_without_reductions()
            return
        self._reporter.log.warning(
            "plan %s %s: %d of %d tensors were all-reduced as planned;"
            " training is correct, but slower. Reasons: %s",
            plan.short_id,
            NOT_EXECUTED,
            len(done),
            len(requested),
            "; ".join(graph.skipped[:5]) or "none given by the pass",
        )


def check_plan_can_run(plan: Plan, num_workers: int, backend: Backend) -> None:
    """Raises `ValueError` if the number of workers differs, or the backend cannot run the plan."""
    if plan.num_workers != num_workers:
        raise ValueError(
            f"plan: num_workers is {plan.num_workers}, but this job has {num_workers} workers"
        )
    backend.check_running(plan)


def check_plan_fits(plan: Plan, tensors: Sequence[TensorSpec]) -> None:
    """Raises `ValueError` if the plan is for another model."""
    sizes = {tensor.name: tensor.num_bytes for tensor in tensors}
    dtypes = {tensor.name: tensor.dtype for tensor in tensors}
    planned = dict(zip(plan.tensor_names, plan.num_bytes, strict=True))
    for name, num_bytes in planned.items():
        if name not in sizes:
            raise ValueError(
                f"plan: tensor_names has {name!r}, of which this step computes no gradient; the"
                " plan is of another model"
            )
        if sizes[name] != num_bytes and not is_rows(dtypes[name]):
            raise ValueError(
                f"plan: num_bytes of {name!r} is {num_bytes}, but its gradient has {sizes[name]}"
            )
    for name, dtype in zip(plan.tensor_names, plan.dtypes or (), strict=False):
        if dtype != dtypes[name]:
            raise ValueError(
                f"plan: dtypes has {dtype!r} for {name!r}, but its gradient is {dtypes[name]}"
            )
    for index, group in enumerate(plan.groups):
        item = item_bytes(dtypes[plan.tensor_names[group.stop - 1]])
        if group.stop_byte is not None and item is not None and group.stop_byte % item:
            name = plan.tensor_names[group.stop - 1]
            raise ValueError(
                f"plan: groups[{index}].stop_byte must be a multiple of {item}, an element of"
                f" {name!r}, which is {dtypes[name]}; it is {group.stop_byte}"
            )
    for name in sizes:
        if name not in planned:
            raise ValueError(f"plan: tensor_names lacks {name!r}; the plan is of another model")
