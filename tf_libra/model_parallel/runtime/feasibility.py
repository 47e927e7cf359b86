"""Chooses among the plans of a strategy one that can be executed."""

import dataclasses
from collections.abc import Callable

from tf_libra.model_parallel.planning.pipeline import PipelineStrategy, make_pipeline_plans
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan

Check = Callable[[PipelinePlan], None]


def plan_for(
    layers: LayerGraph,
    cluster: Cluster,
    strategy: PipelineStrategy,
    num_microbatches: int,
    check: Check,
) -> PipelinePlan:
    """The plan with the shortest iteration of those that can be executed.

    Where SPP may choose the number of stages, there is a plan for each that is possible.

    Args:
        layers: of one microbatch.
        cluster: one device per rank.
        strategy: who plans.
        num_microbatches: M.
        check: raises `ValueError` for a plan that cannot be executed.

    Raises:
        ValueError: none can; says why of the best.
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


def check_all_ranks(plan: PipelinePlan) -> None:
    """Raises `ValueError` where a plan leaves a rank without a stage."""
    used = {device for stage in plan.stages for device in stage.devices}
    unused = sorted(set(range(plan.num_devices)) - used)
    if unused:
        raise ValueError(
            f"the plan of {plan.strategy} has no stage for ranks {unused}: start"
            f" {len(used)} workers, or choose another strategy"
        )
