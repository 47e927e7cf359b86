"""Baselines of burst plans: data parallelism, static partitions and a lower bound."""

from collections.abc import Sequence
from dataclasses import dataclass

from tf_libra.internal import validation
from tf_libra.model_parallel.planning.burst.data_parallel_strategy import run_with_counts
from tf_libra.model_parallel.planning.burst.planner import make_burst_plan
from tf_libra.model_parallel.planning.burst.schedule import make_schedule
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.scaling_profile import ScalingProfile


@dataclass(frozen=True)
class Partition:
    """Static division of a cluster (DeepPool, Fig. 10, "Cluster Partition").

    Attributes:
      foreground: data parallelism on its own devices.
      foreground_devices: number of the foreground's devices.
      background_devices: number of the other devices, each with its own background job.
    """

    foreground: BurstPlan
    foreground_devices: int
    background_devices: int

    def background_iterations(self, iteration_seconds: float) -> float:
        """Return iterations per second of all background devices, from seconds per iteration."""
        return self.background_devices / iteration_seconds


def with_device_counts(scaling: ScalingProfile, num_devices: Sequence[int]) -> BurstPlan:
    """Return the plan that gives each layer a fixed number of devices, without parallel branches.

    Args:
      scaling: the layers.
      num_devices: device count of each layer, from the profile's counts, shape [L].

    Raises:
      ValueError: a count that the profile lacks, not one count per layer, or branches that form no
        blocks.
    """
    positions = [scaling.index(count) for count in num_devices]
    validation.same_length("num_devices", positions, "layer", scaling.num_layers)
    return make_schedule(scaling, run_with_counts(scaling, positions), "given", None)


def data_parallel(scaling: ScalingProfile) -> tuple[BurstPlan, ...]:
    """Return data parallelism on every number of devices, ascending."""
    return tuple(
        make_burst_plan(scaling, "data-parallel", num_devices=count)
        for count in scaling.device_counts
    )


def static_partitions(scaling: ScalingProfile) -> tuple[Partition, ...]:
    """Return the divisions of the cluster, by the foreground's number of devices, ascending."""
    cluster = scaling.device_counts[-1]
    return tuple(
        Partition(plan, count, cluster - count)
        for plan, count in zip(data_parallel(scaling), scaling.device_counts, strict=True)
    )


def strong_scaling_limit(scaling: ScalingProfile) -> float:
    """Return a lower bound of the iteration seconds of all plans, with any amplification.

    The first bound is the longest path through the layers, with free transitions, parallel branches
    and every layer at its best number of devices. The second is the sum of the least device seconds
    of all layers, divided by the size of the cluster.
    """
    occupied = scaling.compute_seconds + scaling.synchronize_seconds
    own = occupied.min(axis=1)
    least = float((occupied * scaling.device_counts).min(axis=1).sum()) / scaling.device_counts[-1]
    before: dict[int, list[int]] = {}
    for source, target in scaling.edges:
        before.setdefault(target, []).append(source)
    ends = [0.0] * scaling.num_layers
    for layer in scaling.order:
        ends[layer] = float(own[layer]) + max((ends[i] for i in before.get(layer, ())), default=0.0)
    return max(*ends, least)
