"""Comparison of the plans and predicted times of all pipeline strategies."""

from collections.abc import Mapping
from dataclasses import dataclass

from tf_libra.model_parallel.planning.pipeline.planner import checked, make_pipeline_plan
from tf_libra.model_parallel.planning.pipeline.strategy import PipelineStrategy
from tf_libra.model_parallel.simulation.pipeline import PipelineTimeline, simulate_pipeline
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan


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
        has a plan, with the first one's reason.
    """
    for one in strategies.values():
        checked(layers, cluster, one, num_microbatches)
    rows = []
    for name, one in strategies.items():
        try:
            plan = make_pipeline_plan(layers, cluster, one, num_microbatches=num_microbatches)
        except ValueError as error:  # such as a missing link
            rows.append(PipelineComparison(name, None, None, str(error)))
            continue
        rows.append(PipelineComparison(name, plan, simulate_pipeline(layers, plan, cluster)))
    if rows and all(row.plan is None for row in rows):
        raise ValueError(rows[0].problem)
    return tuple(rows)
