"""Rejection of second derivatives through averaged gradients.

A script may mean a gradient that it differentiates again in two ways, and has to say which. Many
scripts compute gradients while another tape records and differentiate nothing twice. So the check
takes place when a target is differentiated.
"""

from collections.abc import Iterator
from typing import Any, NoReturn

import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.dataflow.ancestors import ancestors, tensors_of
from tf_libra.capture.gradient_registry import GradientRegistry
from tf_libra.capture.variable_resolution import find_trained_variable
from tf_libra.capture.variables import variable_name
from tf_libra.internal import tf_internal


def reject_forward_derivative(step_name: str, sources: Any, gradients: Any) -> None:
    """Raises `ValueError` if a `tf.autodiff.ForwardAccumulator` differentiates gradients."""
    for name, gradient in _gradients_of_variables(sources, gradients):
        if tf_internal.pack_tangents(tensors_of(gradient)).tangents:
            _reject(step_name, name)


def record_ambiguous(registry: GradientRegistry, sources: Any, gradients: Any) -> None:
    """Records gradients of variables that must not be differentiated."""
    for name, gradient in _gradients_of_variables(sources, gradients):
        ids = map(id, tensors_of(gradient))
        registry.ambiguous_gradients.update(dict.fromkeys(ids, name))


def reject_second_derivative(step_name: str, registry: GradientRegistry, target: Any) -> None:
    """Raises `ValueError` if a target of differentiation was made of an ambiguous gradient."""
    if not registry.ambiguous_gradients:
        return
    hidden = _HiddenAllReduces(set(registry.ambiguous_gradients.values()))
    for tensor in tensors_of(target):
        for ancestor in ancestors(tensor):
            name = registry.ambiguous_gradients.get(id(ancestor)) or hidden.find(ancestor.op)
            if name is not None:
                _reject(step_name, name)


def _reject(step_name: str, name: str) -> NoReturn:
    raise ValueError(
        f"{step_name} computes the gradient of variable {name!r} inside a GradientTape or a"
        " ForwardAccumulator that differentiates it again. Pass inner_gradients='average' for the"
        " gradient on all ranks' data, as for a penalty on the gradient's size, or"
        " inner_gradients='local' for the gradient on this rank's data, as for adapting to a task"
    )


def _gradients_of_variables(sources: Any, gradients: Any) -> Iterator[tuple[str, Any]]:
    flat = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True)
    for source, gradient in flat:
        variable = None if gradient is None else find_trained_variable(source)
        if variable is not None:
            yield variable_name(variable), gradient


class _HiddenAllReduces:
    """All-reduces in functions that ops call: which result is a gradient is not visible there."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._trace = traced_graph.read(tf.compat.v1.get_default_graph())

    def find(self, op: Any) -> str | None:
        """Returns the variable of an ambiguous gradient that a function of the op all-reduces."""
        functions = traced_graph.called_functions(op.node_def, self._trace.functions)
        bases = (
            name.partition("#")[0]
            for node in self._trace.nodes_within(functions)
            for name in node.tensor_names
        )
        return next((name for name in bases if name in self._names), None)
