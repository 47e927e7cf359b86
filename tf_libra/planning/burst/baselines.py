"""What a burst plan is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

from tf_libra import checks
from tf_libra.model.burst import BurstPlan
from tf_libra.model.scaling import ScalingProfile
from tf_libra.planning.burst.planner import make_burst_plan
from tf_libra.planning.burst.same_devices import given
from tf_libra.planning.burst.schedule import make_schedule


@dataclass(frozen=True)
class Partition:
    """A cluster divided for good (DeepPool, Fig. 10, "Cluster Partition").

    Attributes:
      foreground: data parallelism on its own devices.
      foreground_devices: their number.
      background_devices: the others, each of which runs a job of its own.
    """

    foreground: BurstPlan
    foreground_devices: int
    background_devices: int

    def background_iterations(self, iteration_seconds: float) -> float:
        """Per second, of all background devices, from the seconds that one takes."""
        return self.background_devices / iteration_seconds


def given_devices(scaling: ScalingProfile, num_devices: Sequence[int]) -> BurstPlan:
    """Returns the plan that gives each layer so many devices, of which nothing runs beside others.

    Args:
      scaling: the layers.
      num_devices: of the profile's numbers, shape [L].

    Raises:
      ValueError: a number that the profile does not have, not one per layer, or branches that form
        no blocks.
    """
    positions = [scaling.index(count) for count in num_devices]
    checks.same_length("num_devices", positions, "layer", scaling.num_layers)
    return make_schedule(scaling, given(scaling, positions), "given", None)


def data_parallel(scaling: ScalingProfile) -> tuple[BurstPlan, ...]:
    """Returns data parallelism on every number of devices, ascending."""
    return tuple(
        make_burst_plan(scaling, "data-parallel", num_devices=count)
        for count in scaling.device_counts
    )


def static_partitions(scaling: ScalingProfile) -> tuple[Partition, ...]:
    """Returns the divisions of the cluster, by the foreground's number of devices, ascending."""
    cluster = scaling.device_counts[-1]
    return tuple(
        Partition(plan, count, cluster - count)
        for plan, count in zip(data_parallel(scaling), scaling.device_counts, strict=True)
    )


def strong_scaling_limit(scaling: ScalingProfile) -> float:
    """Returns seconds that no plan's iteration is below, whatever it amplifies.

    Transitions are free. Every layer is as quick as on any number of devices, and branches run
    beside each other: the longest path through the layers. And all layers together take no fewer
    device seconds than each does where it takes least, divided among the whole cluster.
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
