"""Burst planner: training steps measure layers at every number of ranks, then rank 0 plans."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tf_libra.autotune import Phase
from tf_libra.coordination.control_plane import Control
from tf_libra.model_parallel.execution.step_executor import StepExecutor
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.batch_sharding import BatchShards
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.resharding import check_resharding
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.planning.burst import (
    BurstStrategy,
    DataParallel,
    make_burst_plan,
    measured_counts,
    possible_counts,
)
from tf_libra.model_parallel.planning.burst.graph_reduction import reduce_graph
from tf_libra.model_parallel.planning.burst.measured_scaling import (
    MeasuredScaling,
    crossing,
)
from tf_libra.model_parallel.planning.link_rates import AllReduces, LinkRates
from tf_libra.model_parallel.planning.results import returns_own
from tf_libra.model_parallel.profiling.layer_benchmark import shares_of_bytes
from tf_libra.model_parallel.profiling.link_benchmark import (
    links_of_job,
    measured_all_reduces,
)
from tf_libra.model_parallel.profiling.step_measurement import MeasuredLayers as Iteration
from tf_libra.model_parallel.profiling.step_measurement import Measuring
from tf_libra.model_parallel.reporting import burst_report
from tf_libra.model_parallel.reporting.plan_records import BurstRecord
from tf_libra.model_parallel.runtime.burst_measurement import (
    ComputeTimes,
    MeasuredLayout,
    compute_times,
    flows,
)
from tf_libra.model_parallel.runtime.gradient_buckets import burst_groups_of
from tf_libra.planning.one_worker import OneWorkerComparison
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.scaling_profile import ScalingProfile

# The first step under a layout instantiates functions and is not measured.
_STEPS = 3


class BurstPlanner:
    """See `Planner`. Without a user-provided plan, the first steps are measured."""

    num_microbatches = 1
    has_branches = True
    joins_rows = False

    def __init__(self, strategy: BurstStrategy, user_plan: BurstPlan | None) -> None:
        """Start without a plan.

        Args:
            strategy: planner with its arguments.
            user_plan: plan to follow; None: the strategy plans.
        """
        self.plan: BurstPlan | None = None
        self.shares_own_results = returns_own(strategy)
        self._user_plan = user_plan
        self._strategy = strategy
        self._layout: Layout | None = None
        self._trials: list[MeasuredLayout] = []
        self._seconds: list[list[float]] = []  # per trial, least seconds of each stage
        self._steps = 0
        self._scaling: ScalingProfile | None = None  # on rank 0
        self._measuring = Measuring(self._tell)  # measures steps under the plan
        fingerprint = None if user_plan is None else user_plan.fingerprint
        self.requested = f"{strategy!r}, plan {fingerprint}"

    @property
    def predicted_seconds(self) -> float | None:
        """See `Planner`."""
        return None if self.plan is None else self.plan.iteration_seconds

    @property
    def link_share(self) -> float:
        """See `Planner`; known on rank 0 alone."""
        if self._scaling is None or self.plan is None:
            return 0.0
        columns = [self._scaling.device_counts.index(count) for count in self.plan.num_devices]
        compute = self._scaling.compute_seconds[range(len(columns)), columns].sum()
        return max(1 - float(compute) / self.plan.iteration_seconds, 0.0)

    def replan(self) -> None:
        """See `Planner`. Layers have been measured."""
        if self._user_plan is None:
            self._layout = None

    def check_batch(self, examples_per_rank: int, num_ranks: int) -> None:
        """Raise `ValueError` if a possible number of ranks does not divide the global batch."""
        batch = examples_per_rank * num_ranks
        device_counts = None if self._user_plan else self._strategy.device_counts
        field = "num_devices" if device_counts is None else "device_counts"
        for count in self._counts(num_ranks, batch):
            if count > num_ranks:
                raise ValueError(
                    f"{field} must be at most the number of workers, {num_ranks}, got {count}"
                )
            if batch % count:
                raise ValueError(
                    f"{field} must divide the batch of all ranks, {num_ranks} times"
                    f" {examples_per_rank} samples, got {count}"
                )
        if self._user_plan is not None:
            pairs = zip(self._user_plan.first_devices, self._user_plan.num_devices, strict=True)
            needed = max(first + count for first, count in pairs)
            if needed > num_ranks:
                raise ValueError(
                    f"plan must be for at most {num_ranks} workers, as there are, got one for"
                    f" {needed}"
                )

    def _counts(self, num_ranks: int, batch: int) -> tuple[int, ...]:
        """Return the numbers of ranks that layers may have."""
        if self._user_plan is not None:
            return tuple(sorted(set(self._user_plan.num_devices)))
        return possible_counts(self._strategy, num_ranks, batch)

    def check_traces(self, traces: SizedTraces) -> None:
        """Raise `ValueError` if the step cannot be cut into layers that update by themselves."""
        graph = traces.microbatch_graph
        if len(graph.layers) == 1:
            raise ValueError(
                f"{graph.recording.name} cannot be cut into layers: {graph.explain_single_layer()}"
            )
        traces.check_update()

    def begin(
        self,
        traces: SizedTraces,
        call_arguments: Any,
        control: Control,
        transport: Transport,
        reporter: RunReporter,
    ) -> None:
        """Choose the trials, or adopt the user-provided plan."""
        graph = traces.microbatch_graph
        self._traces, self._control, self._transport = traces, control, transport
        self._reporter = reporter
        self._names = tuple(layer.name for layer in graph.layers)
        if self._user_plan is not None:
            if self._user_plan.layer_names != self._names:
                raise ValueError(
                    f"plan must be of the layers of {graph.recording.name},"
                    f" {', '.join(self._names)}; got one of"
                    f" {', '.join(self._user_plan.layer_names)}"
                )
            self._check(self._user_plan)
            self._adopt(self._user_plan)
            return
        world, count = control.world_size, len(graph.layers)
        counts = self._counts(world, traces.microbatch_size)
        self._flows = flows(traces.layer_partition, traces.axes(traces.microbatch_size))
        # Raises before measuring if the strategy would raise for any result of the measurements.
        links = LinkRates(Cluster.from_bandwidth(np.ones([world] * 2)), 0.0)
        same = AllReduces((0.0,) * len(counts), (1.0,) * len(counts))
        computation = ComputeTimes(np.ones([count, len(counts)]), 0.0)
        scaling, _ = self._profile(counts, computation, same, links)
        make_burst_plan(scaling, self._strategy)
        reporter.on_activity(Phase.MEASURE)
        # The first one is what `auto` compares with data parallelism: the whole batch on one rank.
        for number in measured_counts(counts):
            ranks = tuple(range(number))
            self._trials += [
                MeasuredLayout(number, Layout.with_stage_per_layer(count, ranks, world)),
                MeasuredLayout(number, Layout.for_layers([ranks] * count, world)),
            ]

    def next_layout(self) -> Layout:
        """See `Planner`. The plan is made once all trials are measured."""
        if self._layout is not None:
            return self._layout
        number = self._steps // _STEPS
        if number < len(self._trials):
            return self._trials[number].layout
        return self._make_plan()

    def during(self, traces: SizedTraces, execution: StepExecutor, run: Callable[[], Any]) -> Any:
        """See `Planner`."""
        if traces is not self._traces:
            return run()
        if self._layout is None:
            result = run()
            self._note(execution)
            return result
        return self._measuring.during(self._control, execution, run)

    def _tell(self, measured: Iteration) -> None:
        assert self.plan is not None
        if self._control.rank == 0:
            self._reporter.log.info(
                "burst plan: %s", burst_report.describe_measured(self.plan, measured)
            )
            self._reporter.on_one_worker(self._compared_with_one_worker(measured.seconds))
            self._reporter.record(partial(self._record, self.plan, measured))

    def _record(
        self, plan: BurstPlan, measured: Iteration, function: str, rank: int
    ) -> BurstRecord:
        number = self._steps + self._measuring.number
        return BurstRecord(function, number, plan, measured.bars, measured.seconds, self._scaling)

    def _note(self, execution: StepExecutor) -> None:
        """Record the times of a step under the measured layout."""
        phase = self._steps % _STEPS
        self._steps += 1
        if phase == 0:
            return
        seconds = self._update_seconds(execution)
        for task_span in execution.task_spans:
            seconds[task_span.stage] += task_span.stop_seconds - task_span.start_seconds
        if phase == 1:
            self._seconds.append(seconds)
        else:
            self._seconds[-1] = list(map(min, self._seconds[-1], seconds))

    def _update_seconds(self, execution: StepExecutor) -> list[float]:
        """Return the update seconds of each stage, in proportion to parameter bytes."""
        began, ended = execution.update_span
        shares = shares_of_bytes(self._traces.microbatch_graph.layers)
        of_stages = np.add.reduceat(shares, execution.layout.starts)
        return [(ended - began) * float(stage) for stage in of_stages]

    def explained(self, name: str, execution: StepExecutor) -> str:
        """See `Planner`."""
        assert self.plan is not None
        typical = self._measuring.typical
        seconds = self.plan.iteration_seconds if typical is None else typical.seconds
        compared = self._compared_with_one_worker(seconds)
        return burst_report.explained(name, self.plan, execution, typical, compared)

    def _compared_with_one_worker(self, seconds: float) -> OneWorkerComparison | None:
        """Return the comparison of a step with all layers on one rank; None if not measured."""
        if self._scaling is None:
            return None
        alone = float(self._scaling.compute_seconds[:, 0].sum())
        return OneWorkerComparison(self._control.world_size, seconds, alone)

    def _make_plan(self) -> Layout:
        """Measure links on all ranks and plan on rank 0."""
        control, reporter = self._control, self._reporter
        links = links_of_job(self._transport, control)
        counts = self._counts(control.world_size, self._traces.microbatch_size)
        all_reduces = measured_all_reduces(self._transport, control, counts)
        everyone = control.all_gather(self._seconds)
        document: Any = None
        if control.rank == 0:
            computation = compute_times(self._trials, everyone, counts)
            try:
                self._scaling, notes = self._profile(counts, computation, all_reduces, links)
                plan = self._plan(self._scaling, notes)
                document = {
                    "plan": plan.to_json(),
                    "groups": self._groups(plan, self._scaling, all_reduces),
                }
            except ValueError as error:  # raised on all ranks
                document = {"refused": str(error)}
        document = control.broadcast(document)
        reporter.on_idle()
        if "refused" in document:
            raise ValueError(document["refused"])
        groups = tuple(tuple(map(tuple, stage)) for stage in document["groups"])
        return self._adopt(BurstPlan.from_json(document["plan"]), groups)

    def _groups(
        self, plan: BurstPlan, scaling: ScalingProfile, all_reduces: AllReduces
    ) -> list[list[list[str]]]:
        """Return the groups of gradients that backward computation overlaps, by stage."""
        layout = Layout.from_burst_plan(plan, self._control.world_size)
        cut = self._traces.partition(layout.starts)
        return burst_groups_of(cut, layout, scaling, all_reduces)

    def _profile(
        self,
        counts: tuple[int, ...],
        computation: ComputeTimes,
        all_reduces: AllReduces,
        links: LinkRates,
    ) -> tuple[ScalingProfile, tuple[str, ...]]:
        """Return a profile with all flows, or with the flows that form blocks of branches."""
        sizes = [layer.parameter_bytes for layer in self._traces.microbatch_graph.layers]
        size = self._traces.microbatch_size
        seconds, stage_startup = computation
        measured = MeasuredScaling(
            counts, self._names, seconds, sizes, all_reduces, links, size, stage_startup
        )
        samples = {edge: flow for edge, flow in self._flows.items() if flow.sample_bytes}
        error = None
        for edges in (self._flows, samples):
            try:
                reduce_graph(len(self._names), list(edges), self._names)
            except ValueError as refused:
                error = error or refused
                continue
            return measured.profile(edges), ()
        note = f"planned as a chain of layers, since {error}"
        return measured.profile(crossing(len(self._names), self._flows)), (note,)

    def _plan(self, scaling: ScalingProfile, notes: tuple[str, ...]) -> BurstPlan:
        """Return the strategy's plan, or the best executable plan with one number of ranks."""
        plan = make_burst_plan(scaling, self._strategy)
        try:
            self._check(plan)
        except ValueError as error:
            limit = plan.max_amplification
            plan = make_burst_plan(scaling, DataParallel(max_amplification=limit))
            notes = (*notes, f"every layer has as many ranks, since: {error}")
        return dataclasses.replace(plan, notes=(*plan.notes, *notes))

    def _check(self, plan: BurstPlan) -> None:
        """Raise `ValueError` if a plan cannot be executed."""
        traces = self._traces
        layout = Layout.from_burst_plan(plan, self._control.world_size)
        BatchShards(layout, traces.examples_per_rank)
        check_resharding(
            traces.partition(layout.starts), layout, traces.axes(traces.microbatch_size)
        )

    def _adopt(
        self, plan: BurstPlan, groups: tuple[tuple[tuple[str, ...], ...], ...] = ()
    ) -> Layout:
        self.plan, self._measuring = plan, Measuring(self._tell)
        layout = Layout.from_burst_plan(plan, self._control.world_size)
        layout = self._layout = dataclasses.replace(layout, groups=groups)
        if self._control.rank == 0:
            self._reporter.log.info("burst plan: %s", burst_report.in_a_line(plan))
            for note in plan.notes:
                self._reporter.log.info("burst plan: %s", note)
        self._reporter.write_files(partial(burst_report.write_planned, plan, self._scaling))
        return layout
