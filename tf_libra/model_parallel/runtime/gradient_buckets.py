"""Gradient fusion for replicated stages, by LIBRA's planner."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.planning.link_rates import AllReduces, LinkRates
from tf_libra.model_parallel.planning.pipeline.replica_reduction import (
    Reduction,
    plan_reduction,
    worthwhile,
)
from tf_libra.model_parallel.simulation import simulate_pipeline
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan
from tf_libra.specs.scaling_profile import ScalingProfile

# Share of backward in the computation of a layer: two of three matrix products.
_BACKWARD_SHARE = 2 / 3


def in_production_order(cut: StagePartition, stage: int) -> list[str]:
    """Return a stage's reductions in the order of the ops that compute their gradients."""
    gradients = cut.graph.gradients
    return sorted(
        cut.reductions[stage], key=lambda name: cut.graph.op_index[gradients[name].op.name]
    )


def reduction_of(
    cut: StagePartition,
    names: Sequence[str],
    num_replicas: int,
    backward: Sequence[float],
    rate: float,
    latency: float,
) -> Reduction:
    """Plan the fusion of a stage's gradients with LIBRA's planner.

    A layer's backward time is divided evenly among its gradients.

    Args:
        cut: partition of the step into stages.
        names: reductions of the stage, in the order in which gradients are produced.
        num_replicas: number of the stage's replicas, at least 2.
        backward: backward seconds of each layer on a replica.
        rate: least rate between two replicas, bytes per second.
        latency: latency of a message between two replicas, seconds.
    """
    layer_of = {name: cut.layer_of_gradient(name) for name in names}
    counts = Counter(layer_of.values())
    # The shapes of gradients are not always known.
    sizes = [_num_bytes(cut.graph.recording.variables[name]) for name in names]
    seconds = [float(backward[layer]) / counts[layer] for layer in layer_of.values()]
    return plan_reduction(sizes, seconds, num_replicas, rate, latency)


def groups_of(
    cut: StagePartition, plan: PipelinePlan, layers: LayerGraph, links: LinkRates
) -> list[list[list[str]]]:
    """Return the groups of fused gradients of every stage, as JSON values.

    A stage without replicas has no groups. Neither has a stage whose single all-reduce after
    backward computation is as fast.

    Args:
        cut: partition of the step into stages.
        plan: plan with the same stages.
        layers: measured layers.
        links: measured links.
    """
    found: list[list[list[str]]] = [[] for _ in plan.stages]
    gains: dict[int, float] = {}
    for stage, allocated in enumerate(plan.stages):
        names = in_production_order(cut, stage)
        if len(allocated.devices) > 1 and names:
            rate = links.cluster.all_reduce_rate(allocated.devices)
            _, backward = layers.replica_seconds(len(allocated.devices))
            deferred = layers.deferred_seconds / len(allocated.devices)
            if deferred[allocated.start : allocated.stop].any():
                # All-reduces follow the last backward, and overlap with deferred gradients.
                backward = deferred
            arguments = (backward.tolist(), rate, links.latency_seconds)
            reduction = reduction_of(cut, names, len(allocated.devices), *arguments)
            found[stage] = [names[start:stop] for start, stop in reduction.groups]
            gains[stage] = reduction.unsplit_seconds - reduction.predicted_seconds
    timeline = simulate_pipeline(layers, plan, links.cluster)
    worth = worthwhile(timeline, gains)
    return [groups if stage in worth else [] for stage, groups in enumerate(found)]


def burst_groups_of(
    cut: StagePartition, layout: Layout, scaling: ScalingProfile, all_reduces: AllReduces
) -> list[list[list[str]]]:
    """Return the groups of fused gradients of every stage of a burst plan, as JSON values.

    A stage without replicas has no groups, and neither has a stage for which one all-reduce after
    backward computation is as fast.

    Args:
        cut: partition of the step into the layout's stages.
        layout: ranks of every stage.
        scaling: profile of the layers.
        all_reduces: costs of all-reduces by the profile's device counts.
    """
    found: list[list[list[str]]] = [[] for _ in layout.ranks]
    for stage, ranks in enumerate(layout.ranks):
        names, count = in_production_order(cut, stage), len(ranks)
        if count < 2 or not names:
            continue
        index = scaling.index(count)
        backward = (_BACKWARD_SHARE * scaling.compute_seconds[:, index]).tolist()
        rate = 2 * (count - 1) / count * all_reduces.bytes_per_second[index]
        # An all-reduce begins with two sequential messages.
        latency = all_reduces.startup_seconds[index] / 2
        reduction = reduction_of(cut, names, count, backward, rate, latency)
        if len(reduction.groups) > 1:
            found[stage] = [names[start:stop] for start, stop in reduction.groups]
    return found


def _num_bytes(variable: Any) -> int:
    return int(variable.shape.num_elements() * variable.dtype.size)
