"""Horovod reductions that a model-parallel step replaces with its own.

Horovod's tapes and optimizers, and `hvd.allreduce` of gradients, average gradients that each rank
has computed from its own examples. Stages average the same gradients over all examples, whichever
rank computes them. So Horovod's reduction is removed if Horovod receives all gradients of the step,
unmodified.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.gradient_registry import GradientRegistry
from tf_libra.capture.variables import plain, variable_name

# These ops return the size or a rank of the job and wait for no other rank.
_QUERY_OPS = ("HorovodSize", "HorovodRank", "HorovodLocalSize", "HorovodLocalRank")


def find_reduced_variables(
    step: str,
    graph: Any,
    registry: GradientRegistry,
    unreduced_variables: Iterable[Any],
    unsupported: Mapping[str, str],
) -> dict[str, Any]:
    """Returns the variable of each gradient that Horovod reduces, by name of the reducing op.

    Args:
        step: name of the step, for messages.
        graph: trace of the step.
        registry: gradient registry of the trace.
        unreduced_variables: variables whose gradients our tapes have not reduced.
        unsupported: by variable name, why only Horovod can reduce the gradient.

    Raises:
        ValueError: Horovod reduces something that stages do not, or would block ranks that run
            other layers.
    """
    for name, reason in unsupported.items():
        raise _unsupported_reduction(step, name, reason)
    reduced: dict[str, Any] = {}
    for op, variable, is_unmodified in registry.by_horovod:
        name, dtype = variable_name(variable), op.inputs[0].dtype
        if op.graph is not graph:
            raise _unsupported_reduction(step, name, "inside a condition or a nested function")
        if not is_unmodified:
            raise _unsupported_reduction(step, name, "modified by a rank before, as by clipping")
        if dtype != plain(variable).dtype:
            raise _unsupported_reduction(step, name, f"compressed to {dtype.name}")
        reduced[op.name] = plain(variable)
    for variable in unreduced_variables:
        if not any(variable is other for other in reduced.values()):
            raise ValueError(
                f"{step}: Horovod averages some gradients, and not that of"
                f" {variable_name(variable)!r}, for example because of register_local_source;"
                " stages have no rank-local gradients"
            )
    for node in traced_graph.read(graph).all_nodes():
        if node.op.startswith("Horovod") and node.op not in _QUERY_OPS:
            raise ValueError(
                f"{step} calls {node.op} ({node.name!r}), which blocks until all ranks call it,"
                " and stages run other layers on each rank; remove the call. Results of a"
                " model-parallel step cover the examples of all ranks"
            )
    return reduced


def is_sum_reduction(op: Any) -> bool:
    """Returns whether a reduction sums the gradient over ranks, as with `op=hvd.Sum`."""
    return bool(op.get_attr("reduction") == b"sum")


def _unsupported_reduction(step: str, variable: str, reason: str) -> ValueError:
    return ValueError(
        f"{step} reduces the gradient of {variable!r} with Horovod ({reason}); stages average"
        " gradients over the examples of all ranks themselves: remove Horovod's reduction"
    )
