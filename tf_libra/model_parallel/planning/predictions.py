"""Predicted steps of pipelines and bursts, from layers that were measured once for all of them."""

import numpy as np

from tf_libra.model_parallel.planning.burst import (
    BurstStrategy,
    make_burst_plan,
    possible_counts,
)
from tf_libra.model_parallel.planning.burst.measured_scaling import ActivationFlow, MeasuredScaling
from tf_libra.model_parallel.planning.link_rates import AllReduces, LinkRates
from tf_libra.model_parallel.planning.pipeline import (
    PipelineStrategy,
    candidate_microbatches,
    make_pipeline_plans,
)
from tf_libra.runtime.strategy_kinds import Links, Prediction
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan
from tf_libra.specs.scaling_profile import ScalingProfile

CALL_SECONDS = 3e-4
"""Typical seconds of the call of a stage from Python, which adds to its computation."""


def predict_pipeline(
    strategy: PipelineStrategy, layers: LayerGraph, links: Links, batch: int
) -> Prediction:
    """Return the predicted step under the best plan, with the best number of microbatches.

    Args:
        strategy: planner with its arguments.
        layers: layers for the joint batch.
        links: links between the ranks.
        batch: number of examples of the joint batch.

    Raises:
        ValueError: there is no plan.
    """
    given = strategy.num_microbatches
    counts = candidate_microbatches(links.num_ranks, batch) if given is None else (given,)
    seconds = {}
    for count in counts:
        plan = _fastest_pipeline(strategy, layers, links, batch, count)
        if plan is not None:
            assert plan.predicted_seconds is not None
            alone = plan.predicted_seconds + 2 * count * CALL_SECONDS
            seconds[count] = alone + pipeline_exchange_seconds(plan, layers, links, alone)
    if not seconds:
        raise ValueError(f"replicas of stages cannot share microbatches of {batch} examples")
    best = min(seconds, key=lambda count: seconds[count])
    return Prediction(seconds[best], {"num_microbatches": best} if given is None else {})


def _fastest_pipeline(
    strategy: PipelineStrategy, layers: LayerGraph, links: Links, batch: int, count: int
) -> PipelinePlan | None:
    """Return the fastest plan whose replicas can share a microbatch; None if there is none."""
    plans = make_pipeline_plans(
        predict_microbatch(layers, links, count), _cluster(links), strategy, num_microbatches=count
    )
    for plan in plans:
        if not any(batch % (count * len(stage.devices)) for stage in plan.stages):
            return plan
    return None


def pipeline_exchange_seconds(
    plan: PipelinePlan, layers: LayerGraph, links: Links, seconds: float | None = None
) -> float:
    """Return the seconds of transfers that the prediction of a plan leaves out.

    Args:
        plan: the plan.
        layers: layers for the joint batch.
        links: links between the ranks.
        seconds: seconds of the step without them; None: as the plan predicts.
    """
    seconds = plan.predicted_seconds or 0.0 if seconds is None else seconds
    first, *_, last = (len(stage.devices) for stage in (plan.stages[0], *plan.stages))
    # Ranks compute in the order of examples: those of the first are there.
    waiting = links.transfer_seconds(layers.input_bytes, first) - seconds / links.num_ranks
    return max(waiting, 0.0) + _end_seconds(layers, links, last, num_stages=len(plan.stages))


def predict_microbatch(layers: LayerGraph, links: Links, count: int) -> LayerGraph:
    """Return the layers for one of `count` microbatches."""
    return layers.for_microbatches(count, links.num_ranks)


def predict_burst(strategy: BurstStrategy, layers: LayerGraph, links: Links, batch: int) -> float:
    """Return the predicted seconds of a step; see `predict_pipeline`."""
    plan = make_burst_plan(predict_scaling(strategy, layers, links, batch), strategy)
    return plan.iteration_seconds + burst_exchange_seconds(plan, layers, links)


def burst_exchange_seconds(plan: BurstPlan, layers: LayerGraph, links: Links) -> float:
    """Return the seconds of transfers that a plan leaves out; see `pipeline_exchange_seconds`."""
    first, last = plan.num_devices[0], plan.num_devices[-1]
    ending = _end_seconds(layers, links, last, num_stages=len({*plan.num_devices}))
    return links.transfer_seconds(layers.input_bytes, first) + ending


def _end_seconds(layers: LayerGraph, links: Links, num_last: int, num_stages: int) -> float:
    """Return the seconds of what ranks exchange after the last layer: results, and broadcasts."""
    results = links.transfer_seconds(layers.output_bytes, num_last)
    if num_stages == 1:
        return results
    return results + layers.update_broadcasts * (links.latency_seconds + CALL_SECONDS)


def predict_scaling(
    strategy: BurstStrategy, layers: LayerGraph, links: Links, batch: int
) -> ScalingProfile:
    """Return the predicted scaling profile of the layers; see `predict_pipeline`."""
    layers = layers.without_deferred()
    counts = possible_counts(strategy, links.num_ranks, batch)
    forward, backward = layers.seconds_of_shares([1 / count for count in counts])
    # The payload of an all-reduce of c bytes is 2(g-1)/g c per rank.
    rates = (links.bytes_per_second * g / max(2 * (g - 1), 1) for g in counts)
    startups = (links.startup_seconds if g > 1 else 0.0 for g in counts)
    flows = [ActivationFlow(2 * size, num_messages=2) for size in layers.activation_bytes]
    return MeasuredScaling(
        counts,
        layers.names,
        forward + backward + layers.update_seconds[:, None],
        list(layers.parameter_bytes),
        AllReduces(tuple(startups), tuple(rates)),
        LinkRates(_cluster(links), links.latency_seconds),
        batch,
        2 * CALL_SECONDS,
    ).profile({(i, i + 1): flow for i, flow in enumerate(flows)})


def _cluster(links: Links) -> Cluster:
    return Cluster.from_bandwidth(np.full([links.num_ranks] * 2, links.bytes_per_second))
