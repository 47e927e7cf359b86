"""Gradient fusion of stages with replicas, by LIBRA's planner."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.planning.pipeline.replica_reduction import (
    Reduction,
    plan_reduction,
    worthwhile,
)
from tf_libra.model_parallel.profiling.link_benchmark import LinkRates
from tf_libra.model_parallel.simulation import simulate_pipeline
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan


def in_production_order(cut: StagePartition, stage: int) -> list[str]:
    """The reductions of a stage, by the places of the ops that compute their gradients."""
    gradients = cut.graph.gradients
    return sorted(
        cut.reductions[stage], key=lambda name: cut.graph.op_index[gradients[name].op.name]
    )


def reduction_of(
    cut: StagePartition,
    names: Sequence[str],
    num_replicas: int,
    layers: LayerGraph,
    rate: float,
    latency: float,
) -> Reduction:
    """Plans the fusion of a stage's gradients with LIBRA's planner.

    Backward computation of each layer is spread evenly over its gradients.

    Args:
        cut: the step in stages.
        names: of the stage's reductions, in the order in which gradients are produced.
        num_replicas: of the stage, at least 2.
        layers: as they were measured; the step's.
        rate: the least between two replicas, bytes per second.
        latency: of a message between two, seconds.
    """
    layer_of = {name: cut.layer_of_gradient(name) for name in names}
    _, backward = layers.replica_seconds(num_replicas)
    counts = Counter(layer_of.values())
    # Of gradients the shape is not always known.
    sizes = [_num_bytes(cut.graph.recording.variables[name]) for name in names]
    seconds = [float(backward[layer]) / counts[layer] for layer in layer_of.values()]
    return plan_reduction(sizes, seconds, num_replicas, rate, latency)


def groups_of(
    cut: StagePartition, plan: PipelinePlan, layers: LayerGraph, links: LinkRates
) -> list[list[list[str]]]:
    """Returns the groups of fused gradients of every stage, as JSON values.

    A stage without replicas has no groups. A stage has no groups, either, if it is as fast to
    reduce its gradients together after all are complete.

    Args:
        cut: the step in stages.
        plan: the same stages.
        layers: as they were measured.
        links: as they were measured.
    """
    found: list[list[list[str]]] = [[] for _ in plan.stages]
    gains: dict[int, float] = {}
    for stage, one in enumerate(plan.stages):
        names = in_production_order(cut, stage)
        if len(one.devices) > 1 and names:
            rate = links.cluster.rate_among(one.devices)
            told = (layers, rate, links.latency_seconds)
            reduction = reduction_of(cut, names, len(one.devices), *told)
            found[stage] = [names[start:stop] for start, stop in reduction.groups]
            gains[stage] = reduction.at_once_seconds - reduction.predicted_seconds
    timeline = simulate_pipeline(layers, plan, links.cluster)
    worth = worthwhile(timeline, gains)
    return [groups if stage in worth else [] for stage, groups in enumerate(found)]


def _num_bytes(variable: Any) -> int:
    return int(variable.shape.num_elements() * variable.dtype.size)
