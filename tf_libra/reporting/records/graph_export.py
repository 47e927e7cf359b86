"""Graph of a training step under a plan, for TensorBoard's Graphs tab.

TensorFlow does not expose Grappler's result, but the pass reports the name and the tensors of each
all-reduce that it has written. So the traced graph's all-reduces of one tensor are merged in the
same way.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

# Largest constant that is written with its value.
_CONSTANT_BYTES = 1024
_OUTPUT = "reduced"


@dataclass(frozen=True)
class GroupNode:
    """All-reduce that the pass has written.

    Attributes:
        name: name of the node.
        group: index of the tensor group.
        num_threads: communication threads.
        copy: index of the step's copy in the graph, from 0.
        tensor_names: reduced tensors, in backward order.
    """

    name: str
    group: int
    num_threads: int
    copy: int
    tensor_names: tuple[str, ...]


def step_graph(definition: Any, groups: Sequence[GroupNode], op: str = "LibraAllReduce") -> Any:
    """Merges the all-reduces of a traced graph in place.

    Args:
        definition: `GraphDef` of the trace; it is changed and returned.
        groups: all-reduces that the pass has written. A cut tensor, in several groups, is skipped.
        op: op type of the all-reduces.
    """
    times = Counter((group.copy, name) for group in groups for name in group.tensor_names)
    targets = {
        (group.copy, name): group
        for group in groups
        for name in group.tensor_names
        if times[group.copy, name] == 1
    }
    _put_together(definition.node, targets, op)
    for function in definition.library.function:
        moved = _put_together(function.node_def, targets, op)
        for results in (function.ret, function.control_ret):
            for key in results:
                results[key] = _moved(results[key], moved)
    for nodes in (
        definition.node,
        *(function.node_def for function in definition.library.function),
    ):
        _leave_out_values(nodes)
    return definition


def _put_together(
    nodes: Any, targets: Mapping[tuple[int, str], GroupNode], op: str
) -> dict[str, tuple[str, int]]:
    """Merges within one graph or function; return the new place of removed outputs."""
    members: dict[str, list[Any]] = {}  # by name of the group's node
    written: dict[str, GroupNode] = {}
    seen: Counter[str] = Counter()
    for node in nodes:
        if node.op != "LibraAllReduce" or len(node.attr["tensor_names"].list.s) != 1:
            continue
        [name] = (encoded.decode() for encoded in node.attr["tensor_names"].list.s)
        group = targets.get((seen[name], name))
        seen[name] += 1
        if group is not None:
            members.setdefault(group.name, []).append(node)
            written[group.name] = group
    for name, some in members.items():
        some.sort(key=partial(_position, written[name]))
    moved = {
        node.name: (name, index)
        for name, some in members.items()
        for index, node in enumerate(some)
    }
    fused = []
    for name, some in members.items():
        group = written[name]
        together = type(some[0])()
        together.CopyFrom(some[0])
        together.name, together.op = name, op
        del together.input[:]
        together.input.extend(node.input[0] for node in some)
        # The trace chains them in its own order, which differs from the plan's.
        controls = [text for node in some for text in node.input if text.startswith("^")]
        together.input.extend(
            dict.fromkeys(text for text in controls if text.removeprefix("^") not in moved)
        )
        names = together.attr["tensor_names"].list
        del names.s[:]
        names.s.extend(node.attr["tensor_names"].list.s[0] for node in some)
        together.attr["N"].i = len(some)
        together.attr["group"].i = group.group
        together.attr["num_threads"].i = group.num_threads
        fused.append(together)
    for index in reversed([i for i, node in enumerate(nodes) if node.name in moved]):
        del nodes[index]
    nodes.extend(fused)
    for node in nodes:
        for index, text in enumerate(node.input):
            node.input[index] = _moved(text, moved)
    return moved


def _position(group: GroupNode, node: Any) -> int:
    return group.tensor_names.index(node.attr["tensor_names"].list.s[0].decode())


def _moved(text: str, moved: Mapping[str, tuple[str, int]]) -> str:
    """Rewrites an input: `node`, `node:0`, `^node` or, in a function, `node:reduced:0`."""
    name, colon, port = text.removeprefix("^").partition(":")
    if name not in moved:
        return text
    node, index = moved[name]
    if text.startswith("^"):
        return f"^{node}"
    if port.startswith(_OUTPUT):
        return f"{node}:{_OUTPUT}:{index}"
    return f"{node}:{index}" if index or colon else node


def _leave_out_values(nodes: Iterable[Any]) -> None:
    for node in nodes:
        if node.op != "Const" or node.ByteSize() <= _CONSTANT_BYTES:
            continue
        value = node.attr["value"].tensor
        without = type(value)(dtype=value.dtype, tensor_shape=value.tensor_shape)
        value.CopyFrom(without)
