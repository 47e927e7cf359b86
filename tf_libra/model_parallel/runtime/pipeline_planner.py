"""Pipeline planner: before the first step, all ranks measure layers and links, and rank 0 plans."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tf_libra.autotune import Phase
from tf_libra.coordination.control_plane import Control
from tf_libra.model_parallel.execution.step_executor import StepExecutor
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.batch_sharding import BatchShards, check_divisible
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.resharding import check_resharding
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.planning.link_rates import LinkRates
from tf_libra.model_parallel.planning.pipeline import (
    PipelineStrategy,
    make_pipeline_plans,
    possible_microbatches,
)
from tf_libra.model_parallel.planning.pipeline.partitioning import check_layers_fit
from tf_libra.model_parallel.planning.results import returns_own
from tf_libra.model_parallel.profiling import layer_benchmark as profiling
from tf_libra.model_parallel.profiling.link_benchmark import (
    links_of_job,
    with_measured_all_reduce,
)
from tf_libra.model_parallel.profiling.step_measurement import MeasuredLayers, Measuring
from tf_libra.model_parallel.reporting import pipeline_report
from tf_libra.model_parallel.reporting.plan_records import PipelineRecord
from tf_libra.model_parallel.runtime.gradient_buckets import groups_of
from tf_libra.model_parallel.simulation.pipeline import simulate_pipeline
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan

# Most partitions whose stages are measured; planning stops earlier at a measured partition.
_MOST_CUTS = 3
# Bytes per second of links that no step waits for.
_ENDLESS_RATE = 1e18


class PipelinePlanner:
    """See `Planner`. `begin` makes the plan, or adopts the given one, which then stays fixed."""

    has_branches = False
    joins_rows = False

    def __init__(self, strategy: PipelineStrategy, user_plan: PipelinePlan | None = None) -> None:
        """Start without a plan.

        Args:
            strategy: planner with its arguments.
            user_plan: plan to follow; None: the strategy plans.
        """
        self.plan: PipelinePlan | None = None
        self.requested = repr(strategy)
        self.num_microbatches = strategy.num_microbatches or 1
        self._user_plan = user_plan
        if user_plan is not None:
            self.requested = f"{strategy!r}, plan {user_plan.fingerprint}"
            self.num_microbatches = user_plan.num_microbatches
        self.shares_own_results = returns_own(strategy)
        self._strategy = strategy
        self._layers: LayerGraph | None = None
        self._cluster: Cluster | None = None
        self._layout: Layout | None = None
        self._measuring = Measuring(self._tell)
        self._first: _First | None = None
        self._is_outdated = False

    @property
    def predicted_seconds(self) -> float | None:
        """See `Planner`."""
        return None if self.plan is None else self.plan.predicted_seconds

    @property
    def link_share(self) -> float:
        """See `Planner`."""
        if self._user_plan is not None or self.plan is None or self._layers is None:
            return 0.0  # it stays, whatever links take
        if not self.plan.predicted_seconds:
            return 0.0
        endless = Cluster.from_bandwidth(np.full([self.plan.num_devices] * 2, _ENDLESS_RATE))
        computed = simulate_pipeline(self._layers, self.plan, endless).iteration_seconds
        return 1 - computed / self.plan.predicted_seconds

    def replan(self) -> None:
        """See `Planner`. Layers have been measured."""
        self._is_outdated = self._user_plan is None

    def check_batch(self, examples_per_rank: int, num_ranks: int) -> None:
        """See `Planner`; chooses the number of microbatches if the strategy leaves it open."""
        if self._user_plan is not None:
            if self._user_plan.num_devices != num_ranks:
                raise ValueError(
                    f"plan must be made for the job's {num_ranks} ranks, got one for"
                    f" {self._user_plan.num_devices}"
                )
        elif self._strategy.num_microbatches is None:
            self.num_microbatches = possible_microbatches(num_ranks, examples_per_rank * num_ranks)
        check_divisible(examples_per_rank, num_ranks, self.num_microbatches)

    def check_traces(self, traces: SizedTraces) -> None:
        """Raise `ValueError` if the step cannot be cut, and several stages may be needed."""
        graph = traces.microbatch_graph
        if len(graph.layers) == 1 and self._strategy.num_stages != 1:
            raise ValueError(
                f"{graph.recording.name} cannot be cut into stages: {graph.explain_single_layer()}"
            )

    def begin(
        self,
        traces: SizedTraces,
        call_arguments: Any,
        control: Control,
        transport: Transport,
        reporter: RunReporter,
    ) -> None:
        """Measure on all ranks and plan on rank 0."""
        graph = traces.microbatch_graph
        names = tuple(layer.name for layer in graph.layers)
        if self._user_plan is not None and self._user_plan.layer_names != names:
            raise ValueError(
                f"plan must be of the layers of {graph.recording.name}, {', '.join(names)}; got one"
                f" of {', '.join(self._user_plan.layer_names)}"
            )
        num_stages = self._strategy.num_stages
        limits = {"layers": len(graph.layers), "workers": control.world_size}
        for what, limit in limits.items():
            if num_stages is not None and num_stages > limit:
                raise ValueError(
                    f"num_stages must be at most the number of {what}, {limit}, got {num_stages}"
                )
        traces.check_update()
        reporter.on_activity(Phase.MEASURE)
        mine = profiling.measured_layers(traces, call_arguments, self.num_microbatches)
        layers = profiling.averaged(mine, control)
        first = _First(traces, control, transport, reporter)
        cluster, links = self._measure_links(first)
        check_layers_fit(layers, cluster)
        plan = self._planned(traces, layers, cluster, control)
        layout = Layout.from_pipeline_plan(plan)
        measured: set[tuple[int, ...]] = {(0,)}  # all layers in one stage
        while layout.starts not in measured and len(measured) <= _MOST_CUTS:
            measured.add(layout.starts)
            count = self.num_microbatches
            mine = profiling.measured_stages(
                traces, call_arguments, count, layers, layout.starts, links
            )
            layers = profiling.averaged(mine, control)
            plan = self._planned(traces, layers, cluster, control)
            layout = Layout.from_pipeline_plan(plan)
        self._adopt(first, plan, layers, cluster, links)

    def _measure_links(self, first: "_First") -> tuple[Cluster, LinkRates]:
        """Return links with the memory of devices, and their latencies; all ranks call this."""
        transport, control = first.transport, first.control
        links = links_of_job(transport, control)
        cluster = with_measured_all_reduce(links.for_both_ways(), transport, control)
        links = replace(links, cluster=cluster)
        memory = [
            limit_bytes
            for limit_bytes in control.all_gather(self._strategy.memory_bytes)
            if limit_bytes is not None
        ]
        return replace(cluster, memory_bytes=min(memory, default=None)), links

    def _replan(self) -> None:
        """Plan again for the measured layers."""
        first, layers = self._first, self._layers
        assert first is not None and layers is not None
        cluster, links = self._measure_links(first)
        plan = self._planned(first.traces, layers, cluster, first.control)
        self._adopt(first, plan, layers, cluster, links)

    def _adopt(
        self,
        first: "_First",
        plan: PipelinePlan,
        layers: LayerGraph,
        cluster: Cluster,
        links: LinkRates,
    ) -> None:
        """Go on with a plan, under which the next steps are measured."""
        traces, control, _, reporter = first
        layout = Layout.from_pipeline_plan(plan)
        groups: Any = None
        if control.rank == 0:
            groups = groups_of(traces.partition(layout.starts), plan, layers, links)
        groups = tuple(tuple(map(tuple, group)) for group in control.broadcast(groups))
        self._layout = replace(layout, groups=groups)
        self.plan, self._layers, self._cluster = plan, layers, cluster
        self._first, self._measuring = first, Measuring(self._tell)
        reporter.on_idle()
        reporter.write_files(partial(pipeline_report.write_planned, layers, cluster, plan))
        if control.rank == 0:
            reporter.log.info("pipeline: %s", pipeline_report.in_a_line(plan))
            for note in plan.notes:
                reporter.log.info("pipeline: %s", note)

    def _planned(
        self, traces: SizedTraces, layers: LayerGraph, cluster: Cluster, control: Control
    ) -> PipelinePlan:
        """Return rank 0's plan; if rank 0 has none, raise its error on every rank."""

        def check(plan: PipelinePlan) -> None:
            layout = Layout.from_pipeline_plan(plan)
            BatchShards(layout, traces.examples_per_rank)
            check_resharding(
                traces.partition(layout.starts), layout, traces.axes(traces.microbatch_size)
            )

        document: Any = None
        if control.rank == 0:
            try:
                if self._user_plan is None:
                    plan = plan_for(layers, cluster, self._strategy, self.num_microbatches, check)
                else:
                    plan = _follow(self._user_plan, layers, cluster, check)
                document = [plan.to_json(), None]
            except ValueError as error:  # raised on all ranks
                document = [None, str(error)]
        made, refused = control.broadcast(document)
        if made is None:
            raise ValueError(refused)
        return PipelinePlan.from_json(made)

    def next_layout(self) -> Layout:
        """See `Planner`."""
        if self._is_outdated:
            self._is_outdated = False
            self._replan()
        assert self._layout is not None
        return self._layout

    def during(self, traces: SizedTraces, execution: StepExecutor, run: Callable[[], Any]) -> Any:
        """Run a step; the first few steps with the planned batch size are measured."""
        first = self._first
        if first is None or traces is not first.traces:
            return run()
        return self._measuring.during(first.control, execution, run)

    def _tell(self, measured: MeasuredLayers) -> None:
        assert self.plan is not None and self._layers is not None and self._cluster is not None
        first = self._first
        assert first is not None
        if first.control.rank == 0:
            first.reporter.log.info(
                "pipeline: %s", pipeline_report.describe_measured(self.plan, measured)
            )
            compared = pipeline_report.compare_with_one_worker(
                self.plan, self._layers, measured.seconds
            )
            first.reporter.on_one_worker(compared)
            inputs = (self.plan, self._layers, self._cluster)
            number = self._measuring.number

            def make_record(function: str, rank: int) -> PipelineRecord:
                return PipelineRecord(function, number, *inputs, measured.bars, measured.seconds)

            first.reporter.record(make_record)
            first.reporter.write_files(partial(pipeline_report.write_measured, make_record))

    def explained(self, name: str, execution: StepExecutor) -> str:
        """See `Planner`."""
        assert self.plan is not None and self._layers is not None and self._cluster is not None
        made = (self.plan, self._layers, self._cluster)
        groups = [] if self._layout is None else [len(group) for group in self._layout.groups]
        typical = self._measuring.typical
        seconds = self.plan.predicted_seconds if typical is None else typical.seconds
        compared = (
            None
            if seconds is None
            else pipeline_report.compare_with_one_worker(self.plan, self._layers, seconds)
        )
        return pipeline_report.explained(name, *made, typical, groups, compared)


class _First(NamedTuple):
    """Inputs of planning: traces, connections to other ranks, and the reporter."""

    traces: SizedTraces
    control: Control
    transport: Transport
    reporter: RunReporter


Check = Callable[[PipelinePlan], None]


def plan_for(
    layers: LayerGraph,
    cluster: Cluster,
    strategy: PipelineStrategy,
    num_microbatches: int,
    check: Check,
) -> PipelinePlan:
    """Return the executable plan with the shortest iteration.

    If SPP may choose the number of stages, it has a candidate for each possible number.

    Args:
        layers: costs of one microbatch.
        cluster: cluster with one device per rank.
        strategy: planner with its arguments.
        num_microbatches: M.
        check: raises `ValueError` for a plan that cannot be executed.

    Raises:
        ValueError: no candidate can be executed; gives the reason for the best one.
    """
    plans = make_pipeline_plans(layers, cluster, strategy, num_microbatches=num_microbatches)
    refused: list[tuple[str, ValueError]] = []
    for plan in plans:
        try:
            check_all_ranks(plan)
            check(plan)
        except ValueError as error:
            refused.append((f"a plan of {len(plan.stages)} stages", error))
            continue
        notes = tuple(f"{what} is not possible: {error}" for what, error in refused)
        return dataclasses.replace(plan, notes=(*plan.notes, *notes))
    raise refused[0][1]


def _follow(
    user_plan: PipelinePlan, layers: LayerGraph, cluster: Cluster, check: Check
) -> PipelinePlan:
    """Return the plan with a new prediction; a plan that cannot run is a `ValueError`."""
    check_all_ranks(user_plan)
    check(user_plan)
    seconds = simulate_pipeline(layers, user_plan, cluster).iteration_seconds
    return dataclasses.replace(user_plan, predicted_seconds=seconds)


def check_all_ranks(plan: PipelinePlan) -> None:
    """Raise `ValueError` if a plan leaves a rank without a stage."""
    used = {device for stage in plan.stages for device in stage.devices}
    unused = sorted(set(range(plan.num_devices)) - used)
    if unused:
        raise ValueError(
            f"the plan of {plan.strategy} has no stage for ranks {unused}: start"
            f" {len(used)} workers, or choose another strategy"
        )
