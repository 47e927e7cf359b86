"""Gradients that are computed while a tape records: whether one differentiates them again.

If one does, they can be meant in two ways, and the script has to say in which. Many a script
updates variables inside of another tape's context, or asks a persistent tape in its own, and
differentiates nothing twice: so it is looked at what is differentiated, when it is.
"""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.dataflow.ancestors import ancestors, tensors_of
from tf_libra.capture.gradient_registry import GradientRegistry
from tf_libra.capture.variable_resolution import trained
from tf_libra.capture.variables import variable_name
from tf_libra.internal import tf_internal


def refuse(step_name: str, name: str) -> None:
    """Raises `ValueError`: of a variable, by its name, the gradient is differentiated again."""
    raise ValueError(
        f"{step_name} takes the gradient of variable {name!r} inside of a GradientTape, or a"
        " ForwardAccumulator, which differentiates it again. Say inner_gradients='average' where it"
        " is to be that of all ranks' data, as for a penalty on the gradient's size, or"
        " inner_gradients='local' where it is to be that of this rank's data alone, as when"
        " adapting to a task"
    )


def check_tangents(step_name: str, sources: Any, gradients: Any) -> None:
    """Raises `ValueError` where a `tf.autodiff.ForwardAccumulator` differentiates gradients."""
    for name, gradient in _of_variables(sources, gradients):
        if tf_internal.pack_tangents(tensors_of(gradient)).tangents:
            refuse(step_name, name)


def note(marks: GradientRegistry, sources: Any, gradients: Any) -> None:
    """Records gradients of variables that may not be differentiated."""
    for name, gradient in _of_variables(sources, gradients):
        marks.undecided.update(dict.fromkeys(map(id, tensors_of(gradient)), name))


def check(step_name: str, marks: GradientRegistry, target: Any) -> None:
    """Raises `ValueError` where what is about to be differentiated was made of such a gradient."""
    if not marks.undecided:
        return
    inside = _Inside(set(marks.undecided.values()))
    for tensor in tensors_of(target):
        for one in ancestors(tensor):
            name = marks.undecided.get(id(one)) or inside.name_in(one.op)
            if name is not None:
                refuse(step_name, name)


def _of_variables(sources: Any, gradients: Any) -> Iterator[tuple[str, Any]]:
    flat = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True)
    for source, gradient in flat:
        variable = None if gradient is None else trained(source)
        if variable is not None:
            yield variable_name(variable), gradient


class _Inside:
    """Looks for all-reduces in functions that ops call, whose results are not distinguished."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._trace = traced_graph.read(tf.compat.v1.get_default_graph())

    def name_in(self, op: Any) -> str | None:
        functions = traced_graph.called_functions(op.node_def, self._trace.functions)
        bases = (
            name.partition("/values")[0].partition("#")[0]
            for node in self._trace.nodes_within(functions)
            for name in node.tensor_names
        )
        return next((name for name in bases if name in self._names), None)
