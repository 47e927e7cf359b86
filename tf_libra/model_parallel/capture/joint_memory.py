"""Memory of a step of the joint batch, which one rank would need, and that its host has."""

from tf_libra.internal import formatting
from tf_libra.internal.available_memory import available_bytes
from tf_libra.model_parallel.capture.step_graph import StepGraph

# Their outputs are their inputs, or lie in a variable.
_ALIASES = frozenset(
    {"ExpandDims", "Identity", "IdentityN", "Placeholder", "ReadVariableOp", "Reshape", "Squeeze"}
)


def find_shortage(graph: StepGraph) -> str | None:
    """Returns that a step may not fit into this host's memory, in a clause; None if it fits.

    Args:
        graph: the step, traced for the joint batch.
    """
    needed, available = output_bytes(graph), available_bytes()
    if available is None or needed <= available:
        return None
    return (
        f"tensors of the joint batch may take {formatting.size(needed)}, and"
        f" {formatting.size(available)} of memory are available"
    )


def output_bytes(graph: StepGraph) -> int:
    """Returns the bytes of all outputs of known size, as if none was freed during the step."""
    total = 0
    for op in graph.ops:
        if op.type in _ALIASES:
            continue
        for tensor in op.outputs:
            num_elements = tensor.shape.num_elements()
            if num_elements is not None and tensor.dtype.size:
                total += num_elements * tensor.dtype.size
    return total
