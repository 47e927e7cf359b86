"""Horovod reductions that a model-parallel step replaces with its own.

Horovod's tapes and optimizers, and `hvd.allreduce` of gradients, average over ranks the gradients
that each rank has computed from its own samples. Stages average the same gradients over all
samples, whichever rank computes them. So Horovod's reduction is left out if Horovod gets exactly
the gradients of the step, all of them, and no tensor that a rank has derived from them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tf_libra.capture.dataflow.forward import nodes_of
from tf_libra.capture.gradient_registry import GradientRegistry
from tf_libra.capture.variables import plain, variable_name

# These ops return the size or a rank of the job and wait for no other rank.
_SAYING = ("HorovodSize", "HorovodRank", "HorovodLocalSize", "HorovodLocalRank")


def reduced_variables(
    step: str, graph: Any, marks: GradientRegistry, computed: Iterable[Any], left: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the variable of each gradient that Horovod reduces, by name of the reducing op.

    Args:
        step: its name, for messages.
        graph: its trace.
        marks: of the trace.
        computed: variables whose gradients the step has computed, and our own tapes not averaged.
        left: gradients that Horovod reduces as the script says: why not we, by name.

    Raises:
        ValueError: Horovod reduces what stages do not, or ranks would wait for others that run
            other layers.
    """
    for name, why in left.items():
        raise _refused(step, name, why)
    found: dict[str, Any] = {}
    for op, variable, is_itself in marks.by_horovod:
        name, dtype = variable_name(variable), op.inputs[0].dtype
        if op.graph is not graph:
            raise _refused(step, name, "in a condition or a function of its own")
        if not is_itself:
            raise _refused(step, name, "what a rank has made of it, such as a clipped one")
        if dtype != plain(variable).dtype:
            raise _refused(step, name, f"compressed to {dtype.name}")
        found[op.name] = plain(variable)
    for variable in computed:
        if not any(variable is one for one in found.values()):
            raise ValueError(
                f"{step} averages gradients with Horovod, and not that of"
                f" {variable_name(variable)!r}, as where register_local_source says so: in stages"
                " no rank has a gradient of its own samples alone"
            )
    for node in nodes_of(graph):
        if node.op.startswith("Horovod") and node.op not in _SAYING:
            raise ValueError(
                f"{step} calls {node.op}, {node.name!r}, for which all ranks have to come,"
                " and in stages they run other layers: take it out of the step. What a step in"
                " stages returns is of all ranks' samples anyway"
            )
    return found


def is_added_up(op: Any) -> bool:
    """Returns whether a reduction sums the gradient over ranks, as with `op=hvd.Sum`."""
    return bool(op.get_attr("reduction") == b"sum")


def _refused(step: str, variable: str, why: str) -> ValueError:
    return ValueError(
        f"{step} reduces the gradient of {variable!r} with Horovod ({why}), where stages average"
        " gradients themselves, of all ranks' samples: take that out of a step that runs in stages"
    )
