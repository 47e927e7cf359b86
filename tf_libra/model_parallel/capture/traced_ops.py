"""Ops of a recorded step in dependency order, with the variables that they use."""

import bisect
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf

from tf_libra.capture.variables import find_value
from tf_libra.internal import tf_internal
from tf_libra.model_parallel.capture.recorded_step import REDUCTION, RecordedStep

READS = frozenset({"ReadVariableOp", "VariableShape"})
"""Types of ops that read a variable: their order is free as long as no op writes the variable."""
LOOKUPS = frozenset({"ResourceGather", "ResourceGatherNd"})
"""Types of ops that read rows of a variable."""
CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
"""Types of stateful ops that raise for some values, and change nothing."""


class TracedOps:
    """Ops of a trace, addressed by index: an op comes after the ops that it depends on.

    That is the order of creation, except for inputs that the gradient of a loop adds to the loop
    later. A region is the part of the trace between two consecutive layer ends.

    Attributes:
        recording: the trace.
        ops: all ops.
        op_index: index of each op by name.
        arguments: placeholder names of the step's tensor arguments.
        captures: captured tensor by name of its placeholder.
        handles: by op, the placeholder names of the variables among its inputs, and of resources of
            other kinds.
        is_write: by op, whether it may write these variables.
        is_constant: by op, whether it is computed from constants only.
    """

    _output_names: tuple[str, ...] | None = None  # of tensors to return instead of the step's

    def __init__(self, recording: RecordedStep) -> None:
        """Orders the ops of a trace.

        Raises:
            ValueError: a variable or an iterator is an argument of the step.
        """
        self.recording = recording
        graph = recording.concrete.graph
        self.ops, self._created = order_ops(graph.get_operations())
        self.op_index = {op.name: index for index, op in enumerate(self.ops)}
        num_args = len(graph.inputs) - len(recording.concrete.captured_inputs)
        for tensor in graph.inputs[:num_args]:
            if tensor.dtype in (tf.resource, tf.variant):
                raise ValueError(
                    f"{recording.name}: argument {tensor.op.name!r} is a variable or an iterator;"
                    " stages divide batches of tensors only"
                )
        self.arguments = tuple(tensor.op.name for tensor in graph.inputs[:num_args])
        self.captures = {
            inner.op.name: outer
            for outer, inner in zip(
                recording.concrete.captured_inputs, graph.inputs[num_args:], strict=True
            )
        }
        self._placeholders = {id(outer): name for name, outer in self.captures.items()}
        names = recording.variable_names()
        self._variable_names = {
            placeholder: names[handle]
            for handle, placeholder in self._placeholders.items()
            if handle in names
        }
        self._layer_ends = [end.num_ops for end in recording.layer_ends]
        self.handles = [self._captured_handles(op) for op in self.ops]
        self.is_write = [
            bool(handles) and op.type not in READS | LOOKUPS and op.op_def.is_stateful
            for op, handles in zip(self.ops, self.handles, strict=True)
        ]
        self.is_constant: list[bool] = []
        for index, op in enumerate(self.ops):
            is_pure = op.type != "Placeholder" and not op.op_def.is_stateful
            are_constant = [self.is_constant[i] for i in self.input_indices(index)]
            self.is_constant.append(is_pure and all(are_constant))

    def _captured_handles(self, op: Any) -> tuple[str, ...]:
        if op.type == "Placeholder":
            return ()
        return tuple(
            tensor.op.name
            for tensor in op.inputs
            if tensor.dtype == tf.resource and tensor.op.name in self.captures
        )

    @property
    def num_regions(self) -> int:
        """The number of layer ends plus one."""
        return len(self._layer_ends) + 1

    def region(self, index: int) -> int:
        """Returns the region in which an op of the forward computation was created."""
        return bisect.bisect_right(self._layer_ends, self._created[index])

    def is_forward(self, index: int) -> bool:
        """Returns whether an op was created outside of the gradient computation."""
        first, stop = self.recording.gradient_ops
        return not first <= self._created[index] < stop

    def is_before_update(self, index: int) -> bool:
        """Returns whether an op was created before the gradients were complete."""
        return self._created[index] < self.recording.gradient_ops[1]

    def input_indices(self, index: int) -> list[int]:
        """Returns the indices of the ops whose outputs an op takes."""
        return [self.op_index[tensor.op.name] for tensor in self.ops[index].inputs]

    def find_dependents(self, sources: Container[int]) -> list[bool]:
        """Returns, by op, whether it is one of these ops or takes what is computed from one."""
        found: list[bool] = []
        for index in range(len(self.ops)):
            found.append(index in sources or any(found[i] for i in self.input_indices(index)))
        return found

    def closure(self, indices: Iterable[int], stop_at: Container[int] = ()) -> set[int]:
        """Returns ops and all ops from which they are computed.

        Args:
            indices: the ops.
            stop_at: ops whose inputs are left out, as those of gradient reductions always are.
        """
        found: set[int] = set()
        pending = list(indices)
        while pending:
            index = pending.pop()
            if index in found:
                continue
            found.add(index)
            if self.ops[index].type != REDUCTION and index not in stop_at:
                pending += self.input_indices(index)
        return found

    @cached_property
    def outputs(self) -> tuple[Any, ...]:
        """The tensors that the step returns."""
        graph = self.recording.concrete.graph
        if self._output_names is None:
            return tuple(graph.outputs)
        return tuple(map(graph.get_tensor_by_name, self._output_names))

    @cached_property
    def gradients(self) -> dict[str, Any]:
        """Gradients before their reduction, by name of the reducing op."""
        return {op.name: op.inputs[0] for op in self.ops if op.type == REDUCTION}

    # Variables are addressed by the name of their placeholder.

    def variable_name(self, placeholder: str) -> str:
        """Returns the name of a variable."""
        return self._variable_names.get(placeholder, placeholder)

    def is_variable(self, placeholder: str) -> bool:
        """Returns whether a captured resource is a variable, and no table or queue, for example."""
        is_known = placeholder in self._variable_names
        return is_known or find_value(self.captures[placeholder]) is not None

    def placeholder_of(self, variable: Any) -> str | None:
        """Returns the placeholder of a variable; None if the trace does not capture it."""
        return self._placeholders.get(id(variable.handle))

    def written_variables(self, index: int) -> set[str]:
        """Returns the variables that an op writes; a function call may only read some inputs."""
        _, written = tf_internal.get_read_write_resource_inputs(self.ops[index])
        return {tensor.op.name for tensor in written} & {*self.handles[index]}

    def follows_write(self, index: int, writes: Mapping[str, set[str]]) -> bool:
        """Returns whether an op has a control edge from a write of a variable that it uses.

        Args:
            index: the op.
            writes: names of writing ops by variable.
        """
        predecessors = {op.name for op in self.ops[index].control_inputs}
        return any(predecessors & writes.get(handle, set()) for handle in self.handles[index])


def order_ops(created: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Returns ops in dependency order, and for each the time at which it is available.

    Independent ops keep the order of creation, which is the same on every rank. An op is available
    from the creation of the first op that it precedes or equals in this order.

    Args:
        created: ops in the order of creation.
    """
    created_at = {op.name: number for number, op in enumerate(created)}
    ops: list[Any] = []
    available: list[int] = []
    done: set[str] = set()
    for number, root in enumerate(created):
        stack = [root]
        while stack:
            op = stack[-1]
            inputs = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
            missing = [other for other in inputs if other.name not in done]
            if missing and op.name not in done:
                # The op that was created first must be on top of the stack.
                stack += sorted(missing, key=lambda op: created_at[op.name], reverse=True)
                continue
            stack.pop()
            if op.name not in done:
                done.add(op.name)
                ops.append(op)
                available.append(number)
    return ops, available
