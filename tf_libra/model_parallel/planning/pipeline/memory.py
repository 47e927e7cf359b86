"""Check of stages against the memory of devices."""

from tf_libra.internal import formatting
from tf_libra.planning.tolerance import within
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelineStage

# Parameters and their gradients. Slots and activations are unknown here.
COPIES = 2


def check_layers_fit(layers: LayerGraph, cluster: Cluster) -> None:
    """Raise `ValueError` if a single layer exceeds the memory of every device."""
    largest = max(layers.layers, key=lambda one: one.parameter_bytes)
    needed = COPIES * largest.parameter_bytes
    if cluster.memory_bytes is not None and not within(needed, cluster.memory_bytes):
        raise ValueError(
            f"layer {largest.name!r} fits no device: its parameters and their gradients take"
            f" {formatting.size(needed)}, and memory_bytes of cluster is"
            f" {formatting.size(cluster.memory_bytes)}"
        )


def check_stages_fit(
    layers: LayerGraph, cluster: Cluster, strategy: str, stages: tuple[PipelineStage, ...]
) -> None:
    """Raise `ValueError` if a stage exceeds the memory of a device."""
    for number, stage in enumerate(stages):
        needed = COPIES * float(layers.parameter_bytes[stage.start : stage.stop].sum())
        if cluster.memory_bytes is not None and not within(needed, cluster.memory_bytes):
            raise ValueError(
                f"stage {number} of the plan of {strategy}, layers {stage.start} to"
                f" {stage.stop - 1}, fits no device: its parameters and their gradients take"
                f" {formatting.size(needed)}, and memory_bytes of cluster is"
                f" {formatting.size(cluster.memory_bytes)}; strategy 'spp' looks for stages that"
                " fit"
            )
