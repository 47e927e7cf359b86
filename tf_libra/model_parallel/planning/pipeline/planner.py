"""Planning of pipelines by a strategy."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tf_libra.internal import validation
from tf_libra.model_parallel.planning.pipeline.partitioning import (
    check_layers_fit,
    check_stages_fit,
)
from tf_libra.model_parallel.planning.pipeline.strategy import (
    PipelineDraft,
    PipelineStrategy,
    resolve,
)
from tf_libra.model_parallel.simulation.fastest_pipeline import fastest_first
from tf_libra.model_parallel.simulation.pipeline import PipelineTimeline, simulate_pipeline
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan

# Largest number of microbatches; a plan lists the computations of all of them.
MOST_MICROBATCHES = 1 << 14


def make_pipeline_plan(
    layers: LayerGraph,
    cluster: Cluster,
    strategy: PipelineStrategy | str,
    *,
    num_microbatches: int | None = None,
) -> PipelinePlan:
    """Return the strategy's plan for a model on a cluster, with its predicted time.

    Args:
      layers: costs of a microbatch, by layer.
      cluster: the devices and the rates between them.
      strategy: a registered name, such as "spp", "gpipe", "pipedream", "hetpipe" or
        "data-parallel"; or a strategy with its arguments.
      num_microbatches: M, number of parts of an iteration's batch; None: the strategy's.

    Raises:
      ValueError: an unknown strategy, no or less than one microbatch, more stages than layers or
        devices, a layer or stage that fits no device, or a missing link that the plan needs.
    """
    strategy, count = checked(layers, cluster, strategy, num_microbatches)
    return _planned(layers, cluster, strategy, strategy.draft(layers, cluster, count))


def make_pipeline_plans(
    layers: LayerGraph,
    cluster: Cluster,
    strategy: PipelineStrategy | str,
    *,
    num_microbatches: int | None = None,
) -> Iterator[PipelinePlan]:
    """Yield the candidate plans of a strategy, the shortest iteration first.

    SPP has a candidate per number of stages, most others have one. Arguments and errors are those
    of `make_pipeline_plan`, whose plan is the first.
    """
    strategy, count = checked(layers, cluster, strategy, num_microbatches)
    drafts = strategy.drafts(layers, cluster, count)
    plans = [_unpredicted(layers, cluster, strategy, draft) for draft in drafts]
    return fastest_first(plans, layers, cluster)


def checked(
    layers: LayerGraph,
    cluster: Cluster,
    strategy: PipelineStrategy | str,
    num_microbatches: int | None,
) -> tuple[PipelineStrategy, int]:
    """Return the strategy and M of `make_pipeline_plan`'s arguments.

    Raises:
      ValueError: the arguments allow no plan, whatever the links and the planner.
    """
    validation.instance("layers", layers, LayerGraph)
    validation.instance("cluster", cluster, Cluster)
    strategy = resolve(strategy)
    if num_microbatches is None:
        num_microbatches = strategy.num_microbatches
    if num_microbatches is None:
        raise ValueError("num_microbatches must be given, at least 1, got None")
    count = validation.integer("num_microbatches", num_microbatches, 1, MOST_MICROBATCHES)
    check_layers_fit(layers, cluster)
    limits = {"layers": len(layers.layers), "devices": cluster.num_devices}
    for what, limit in limits.items():
        if (strategy.num_stages or 0) > limit:
            raise ValueError(
                f"num_stages must be at most the number of {what}, {limit},"
                f" got {strategy.num_stages}"
            )
    return strategy, count


def _planned(
    layers: LayerGraph, cluster: Cluster, strategy: PipelineStrategy, draft: PipelineDraft
) -> PipelinePlan:
    plan = _unpredicted(layers, cluster, strategy, draft)
    seconds = simulate_pipeline(layers, plan, cluster).iteration_seconds
    return replace(plan, predicted_seconds=seconds)


def _unpredicted(
    layers: LayerGraph, cluster: Cluster, strategy: PipelineStrategy, draft: PipelineDraft
) -> PipelinePlan:
    check_stages_fit(layers, cluster, strategy.name, draft.stages)
    return PipelinePlan(
        draft.stages, layers.names, cluster.num_devices, strategy.name, notes=draft.notes
    )


@dataclass(frozen=True)
class PipelineComparison:
    """One row of a comparison.

    Attributes:
      name: name of the row.
      plan: the plan; None if layers or cluster allow none.
      timeline: predicted timeline of the plan; None without a plan.
      problem: reason for a missing plan; empty with a plan.
    """

    name: str
    plan: PipelinePlan | None
    timeline: PipelineTimeline | None
    problem: str = ""


def compare(
    layers: LayerGraph,
    cluster: Cluster,
    strategies: Mapping[str, PipelineStrategy],
    num_microbatches: int,
) -> tuple[PipelineComparison, ...]:
    """Return the comparison of the given strategies, by name, in their order.

    Raises:
      ValueError: an argument that allows a strategy no plan, before any planning; or no strategy
        has a plan, with the reason of the first strategy.
    """
    for strategy in strategies.values():
        checked(layers, cluster, strategy, num_microbatches)
    rows = []
    for name, strategy in strategies.items():
        try:
            plan = make_pipeline_plan(layers, cluster, strategy, num_microbatches=num_microbatches)
        except ValueError as error:  # such as a missing link
            rows.append(PipelineComparison(name, None, None, str(error)))
            continue
        rows.append(PipelineComparison(name, plan, simulate_pipeline(layers, plan, cluster)))
    if rows and all(row.plan is None for row in rows):
        raise ValueError(rows[0].problem)
    return tuple(rows)
