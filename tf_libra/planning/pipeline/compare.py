"""All strategies of pipelines side by side: what each plans, and what that is predicted to take."""

from collections.abc import Mapping
from dataclasses import dataclass

from tf_libra.model.cluster import Cluster
from tf_libra.model.layers import LayerGraph
from tf_libra.model.pipeline import PipelinePlan
from tf_libra.planning.pipeline.planner import checked, make_pipeline_plan
from tf_libra.planning.pipeline.strategy import PipelineStrategy
from tf_libra.simulation.pipeline import PipelineTimeline, simulate_pipeline


@dataclass(frozen=True)
class Compared:
    """One row of a comparison.

    Attributes:
      name: what it is given under.
      plan: its plan; None where layers or cluster allow none.
      timeline: what is predicted of it; likewise.
      problem: why there is none; empty where there is.
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
) -> tuple[Compared, ...]:
    """Returns what each strategy plans, by the name it is given under, in that order.

    Raises:
      ValueError: an argument that allows a strategy no plan, before anything is planned; or none
        has a plan: says why the first has none.
    """
    for one in strategies.values():
        checked(layers, cluster, one, num_microbatches)
    rows = []
    for name, one in strategies.items():
        try:
            plan = make_pipeline_plan(layers, cluster, one, num_microbatches=num_microbatches)
        except ValueError as error:  # such as a link that it needs, and that is missing
            rows.append(Compared(name, None, None, str(error)))
            continue
        rows.append(Compared(name, plan, simulate_pipeline(layers, plan, cluster)))
    if rows and all(row.plan is None for row in rows):
        raise ValueError(rows[0].problem)
    return tuple(rows)
