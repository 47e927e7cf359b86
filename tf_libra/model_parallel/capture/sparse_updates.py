"""Updates from sparse gradients that treat rows as their dense sum.

Stages apply dense gradients, in which rows of the same id are added. Some optimizers apply rows
otherwise: a square of each row, or a state that only changes for ids of the batch. An update that
scales rows and adds them to the variable does the same with their sum.
"""

from collections.abc import Iterator
from typing import Any

from tf_libra.model_parallel.capture.recorded_step import REDUCTION
from tf_libra.model_parallel.capture.step_graph import StepGraph

_COPIES = frozenset({"Cast", "Identity", "Neg"})
# Ops that scale rows, with the indices of inputs that may be rows.
_SCALES = {"Mul": (0, 1), "RealDiv": (0,), "Div": (0,), "DivNoNan": (0,)}
# Ops that add up rows, with the indices of the inputs for rows and ids.
_SUMS = {
    "ResourceScatterAdd": (2, 1),
    "ResourceScatterSub": (2, 1),
    "UnsortedSegmentSum": (0, 1),
}


def find_use_of_rows(graph: StepGraph) -> str | None:
    """Returns the first op that uses rows otherwise than as their dense sum; None without one.

    Args:
        graph: the step, whose sparse gradients are reduced as rows and ids.
    """
    # By tensor that is computed from a sparse gradient: the gradient, and whether it holds ids.
    parts: dict[str, tuple[str, bool]] = {}
    sparse = {*_sparse_gradients(graph)}
    for op in graph.ops:
        if op.type == REDUCTION:
            parts |= _reduced_part(op, sparse)
            continue
        used = [parts.get(tensor.name) for tensor in op.inputs]
        if not any(used):
            continue
        part = _forwarded_part(op, used)
        if part is not None:
            parts[op.outputs[0].name] = part
        elif not _adds_rows(op, used):
            return str(op.name)
    returned = {tensor.name for tensor in graph.recording.concrete.graph.outputs}
    return next(iter(sorted(returned & parts.keys())), None)


def _sparse_gradients(graph: StepGraph) -> Iterator[str]:
    for op in graph.ops:
        if op.type == REDUCTION and _name_of(op).endswith("/ids"):
            yield _name_of(op).removesuffix("/ids")


def _name_of(op: Any) -> str:
    [name] = op.get_attr("tensor_names")
    return str(name.decode())


def _reduced_part(op: Any, sparse: set[str]) -> dict[str, tuple[str, bool]]:
    name = _name_of(op)
    gradient, is_ids = name.removesuffix("/ids"), name.endswith("/ids")
    return {op.outputs[0].name: (gradient, is_ids)} if gradient in sparse else {}


def _forwarded_part(op: Any, used: list[tuple[str, bool] | None]) -> tuple[str, bool] | None:
    """Returns which part an op passes on, scaled if it holds rows; None if it does otherwise."""
    if op.type in _COPIES:
        is_ids = _holds_ids(used[0])
        may_cast = op.outputs[0].dtype.is_integer == is_ids  # an integer rounds each row
        return used[0] if may_cast and not (is_ids and op.type == "Neg") else None
    [index, *others] = [number for number, part in enumerate(used) if part is not None]
    if others or index not in _SCALES.get(op.type, ()) or _holds_ids(used[index]):
        return None
    factor = op.inputs[1 - index]
    return used[index] if factor.shape.num_elements() == 1 else None


def _holds_ids(part: tuple[str, bool] | None) -> bool:
    return part is not None and part[1]


def _adds_rows(op: Any, used: list[tuple[str, bool] | None]) -> bool:
    """Returns whether an op adds all rows of a gradient, each to what its id names."""
    if op.type not in _SUMS:
        return False
    rows, ids = (used[index] for index in _SUMS[op.type])
    others = [part for index, part in enumerate(used) if index not in _SUMS[op.type]]
    is_pair = rows is not None and ids is not None and rows[0] == ids[0]
    return is_pair and not _holds_ids(rows) and _holds_ids(ids) and not any(others)
