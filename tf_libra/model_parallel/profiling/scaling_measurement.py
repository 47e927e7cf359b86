"""Measured flows between layers, for scaling profiles of burst planners."""

from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.planning.burst.measured_scaling import ActivationFlow, Edge


def flows(cut: StagePartition, axes: BatchAxes) -> dict[Edge, ActivationFlow]:
    """Return the flow between each pair of layers; as much flows back as forward.

    Args:
        cut: partition of the step for the whole batch, with one layer per stage.
        axes: batch axes of the same trace.
    """
    found: dict[Edge, ActivationFlow] = {}
    for message in cut.messages:
        edge = (message.source, message.target)
        if message.source > message.target:
            continue  # gradients of several layers may be added before they reach a layer
        tensor = cut.tensor(message.tensor)
        ways = 1 + tensor.dtype.is_floating
        size = float(tensor.shape.num_elements() * tensor.dtype.size * ways)
        is_whole = axes.batch_axis(message.tensor) is None
        flow = ActivationFlow(other_bytes=size) if is_whole else ActivationFlow(sample_bytes=size)
        found[edge] = found.get(edge, ActivationFlow()) + flow + ActivationFlow(num_messages=ways)
    return dict(sorted(found.items()))
