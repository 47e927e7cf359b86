"""Trace of a training step, annotated with layer ends and reduced gradients."""

from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tf_libra.capture.variables import variable_name

REDUCTION = "LibraAllReduce"
"""Type of the op through which every gradient of a trace passes."""


@dataclass(frozen=True)
class LayerEnd:
    """End of a layer in a trace.

    Attributes:
        name: layer name, unique within the step.
        num_ops: number of ops in the trace when the layer ended.
        outputs: names of the identity ops behind the layer's outputs.
        gradients: names of the identity ops behind the gradients of these outputs.
    """

    name: str
    num_ops: int
    outputs: tuple[str, ...]
    gradients: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RecordedStep:
    """Trace of a step.

    Attributes:
        name: step name, for messages.
        concrete: the trace; each dense gradient passes through one `LibraAllReduce`.
        layer_ends: ends of layers, in forward order.
        gradient_ops: half-open range of the ops that compute gradients, in creation order.
        variables: trained variables by name of the op that reduces their gradient.
        nested_layers: names of layers that end inside another function, loop or condition, where
            the step cannot be cut.
        has_rows: whether a gradient is sparse: its values and its ids pass through one each.
        losses: names of the ops whose gradient the step computes.
    """

    name: str
    concrete: Any
    layer_ends: tuple[LayerEnd, ...]
    gradient_ops: tuple[int, int]
    variables: dict[str, Any]
    nested_layers: tuple[str, ...]
    has_rows: bool = False
    losses: tuple[str, ...] = ()

    @property
    def is_evaluation(self) -> bool:
        """True if the step computes no gradient, for example because of a flag."""
        return not self.variables

    def variable_names(self) -> dict[int, str]:
        """Returns the names of the variables by `id` of their handles."""
        return {id(var.handle): variable_name(var) for var in self.concrete.graph.variables}

    def replica_handles(self) -> set[int]:
        """Returns the `id`s of handles of variables that each replica writes, as metrics do."""
        on_read = tf.VariableSynchronization.ON_READ
        variables = self.concrete.graph.variables
        return {id(var.handle) for var in variables if var.synchronization is on_read}

    def sum_handles(self) -> set[int]:
        """Returns the `id`s of handles of variables whose value is the sum over replicas."""
        variables = self.concrete.graph.variables
        aggregation = tf.VariableAggregation.SUM
        return {id(var.handle) for var in variables if var.aggregation is aggregation}
