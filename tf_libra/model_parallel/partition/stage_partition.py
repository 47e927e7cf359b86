"""Partition of a recorded step into stages: the ops of each, and the messages between them.

Of n stages, stage s has two phases: forward, phase s, and backward, phase 2n - 1 - s. So phases are
numbered in the order in which a microbatch passes them. Every op is assigned to the phase of its
layer, or to the first later phase in which all its inputs are available. A tensor that another
stage needs is sent to that stage directly, across any number of cuts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.recorded_step import REDUCTION
from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.capture.traced_ops import READS
from tf_libra.model_parallel.partition.subgraph import Subgraph, SubgraphClosure, collect_closure

_ANY_PHASE = -1  # the phase of ops that every stage computes for itself


@dataclass(frozen=True)
class StageMessage:
    """Tensor of a microbatch that one stage sends to another.

    Attributes:
        tensor: its name in the trace.
        source: the stage that computes it.
        target: the stage that needs it.
        send_phase: the phase after which it is sent.
        receive_phase: the phase before which it is received.
    """

    tensor: str
    source: int
    target: int
    send_phase: int
    receive_phase: int


class StagePartition:
    """A recorded step in stages.

    Attributes:
        graph: the step.
        num_stages: number of stages.
        phases: phase by op index, of the ops of a microbatch.
        reductions: by stage, names of the reductions of its variables' gradients.
        messages: messages of a microbatch, in the order in which they are computed.
    """

    def __init__(self, graph: StepGraph, starts: Sequence[int]) -> None:
        """Assigns ops to stages.

        Args:
            graph: the step.
            starts: by stage, its first layer; ascending from 0.

        Raises:
            ValueError: a tensor that cannot be sent would have to cross a cut.
        """
        self.graph = graph
        self.num_stages = len(starts)
        stage = -1
        self._stage_of_region = []
        for index, layer in enumerate(graph.layers):
            stage += index in starts
            self._stage_of_region += [stage] * (layer.stop - layer.start)
        # By name of the op behind the gradient of a layer's output, the region of the layer.
        self._gradient_regions = {
            name: region
            for region, end in enumerate(graph.recording.layer_ends)
            for name in end.gradients
        }
        self.phases = self._assign_phases()
        self.reductions = self._assign_reductions()
        self.messages = self._find_messages()

    def forward_phase(self, stage: int) -> int:
        """Returns the phase of a stage's forward computation."""
        return stage

    def backward_phase(self, stage: int) -> int:
        """Returns the phase of a stage's backward computation."""
        return 2 * self.num_stages - 1 - stage

    def stage_of_phase(self, phase: int) -> int:
        """Returns the stage of a phase."""
        return min(phase, 2 * self.num_stages - 1 - phase)

    def stage_of_variable(self, placeholder: str) -> int:
        """Returns the stage to which a variable belongs."""
        return self._stage_of_region[self.graph.region_of_variable(placeholder)]

    def stage_of_gradient(self, reduction: str) -> int:
        """Returns the stage that updates the variable of a gradient."""
        return self._stage_of_region[self._region_of_gradient(reduction)]

    def layer_of_gradient(self, reduction: str) -> int:
        """Returns the layer to which the variable of a gradient belongs."""
        region = self._region_of_gradient(reduction)
        layers = self.graph.layers
        return next(i for i, layer in enumerate(layers) if layer.start <= region < layer.stop)

    def _region_of_gradient(self, reduction: str) -> int:
        placeholder = self.graph.placeholder_of(self.graph.recording.variables[reduction])
        assert placeholder is not None, reduction
        return self.graph.region_of_variable(placeholder)

    def tensor(self, name: str) -> Any:
        """Returns a tensor of the trace by its name."""
        return self.graph.recording.concrete.graph.get_tensor_by_name(name)

    def phase_of_tensor(self, tensor: Any) -> int:
        """Returns the phase that computes a tensor; the last forward phase if any phase could."""
        phase = self.phases[self.graph.op_index[tensor.op.name]]
        return self.num_stages - 1 if phase == _ANY_PHASE else phase

    def _assign_phases(self) -> dict[int, int]:
        graph = self.graph
        phases: dict[int, int] = {}
        for index in sorted(graph.microbatch_ops):
            op = graph.ops[index]
            if op.type == REDUCTION:
                continue
            if graph.is_recomputable[index] or op.type == "Placeholder":
                phases[index] = _ANY_PHASE
                continue
            phase = max((phases[i] for i in graph.input_indices(index)), default=_ANY_PHASE)
            if graph.is_pinned(index):
                phase = max(phase, self._stage_of_region[graph.region(index)])
            if graph.is_pinned(index) or op.type in READS:
                stages = [self.stage_of_variable(handle) for handle in graph.handles[index]]
                phase = max([phase, *stages])
            elif op.name in self._gradient_regions:
                stage = self._stage_of_region[self._gradient_regions[op.name]]
                phase = max(phase, self.backward_phase(stage))
            elif phase == _ANY_PHASE:  # for example a random op of the backward computation
                phase = self.num_stages - 1
            phases[index] = phase
            for handle in graph.handles[index]:
                if self.stage_of_phase(phase) != self.stage_of_variable(handle):
                    raise ValueError(
                        f"{graph.recording.name}: {op.name} uses {graph.variable_name(handle)!r}"
                        " in another stage than the variable's layer"
                    )
        return phases

    def _assign_reductions(self) -> list[list[str]]:
        reductions: list[list[str]] = [[] for _ in range(self.num_stages)]
        for name, gradient in self.graph.gradients.items():
            stage = self.stage_of_gradient(name)
            phase = self.phases[self.graph.op_index[gradient.op.name]]
            if phase > self.backward_phase(stage):
                raise ValueError(
                    f"{self.graph.recording.name}: gradient {gradient.op.name} is computed after"
                    " the end of the stage of its variable"
                )
            reductions[stage].append(name)
        return reductions

    def _uses(self) -> list[tuple[Any, int]]:
        """Returns every use of a tensor of a microbatch, with the phase that uses it."""
        graph = self.graph
        uses = []
        for index in sorted(graph.microbatch_ops):
            for tensor in graph.ops[index].inputs:
                if graph.ops[index].type != REDUCTION and self.phases[index] != _ANY_PHASE:
                    uses.append((tensor, self.phases[index]))
        for name, gradient in graph.gradients.items():
            uses.append((gradient, self.backward_phase(self.stage_of_gradient(name))))
        return uses

    def _find_messages(self) -> tuple[StageMessage, ...]:
        receive_phases: dict[tuple[str, int], int] = {}
        op_index: dict[str, int] = {}
        for tensor, used_in in self._uses():
            index = self.graph.op_index[tensor.op.name]
            phase = self.phases[index]
            target = self.stage_of_phase(used_in)
            if phase == _ANY_PHASE or self.stage_of_phase(phase) == target:
                continue
            self._check_sendable(tensor)
            key = (tensor.name, target)
            receive_phases[key] = min(receive_phases.get(key, used_in), used_in)
            op_index[tensor.name] = index
        messages = []
        for (name, target), receive_phase in receive_phases.items():
            phase = self.phases[op_index[name]]
            source = self.stage_of_phase(phase)
            messages.append(StageMessage(name, source, target, phase, receive_phase))
        return tuple(sorted(messages, key=lambda m: (m.send_phase, op_index[m.tensor], m.target)))

    def _check_sendable(self, tensor: Any) -> None:
        name = self.graph.recording.name
        if tensor.dtype in (tf.resource, tf.variant, tf.string):
            raise ValueError(
                f"{name}: {tensor.op.name} crosses a stage boundary, and its dtype"
                f" {tensor.dtype.name} cannot be sent"
            )
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"{name}: {tensor.op.name} crosses a stage boundary, and its shape {tensor.shape}"
                " is not static"
            )

    @cached_property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """The subgraph of each phase."""
        num_phases = 2 * self.num_stages
        members: list[set[int]] = [set() for _ in range(num_phases)]
        outputs: list[dict[str, None]] = [{} for _ in range(num_phases)]
        for index, phase in self.phases.items():
            if phase != _ANY_PHASE:
                members[phase].add(index)
        for tensor in self.graph.microbatch_outputs:
            outputs[self.phase_of_tensor(tensor)][tensor.name] = None
        for name, gradient in self.graph.gradients.items():
            outputs[self.backward_phase(self.stage_of_gradient(name))][gradient.name] = None
        for message in self.messages:
            outputs[message.send_phase][message.tensor] = None
        received = {(message.tensor, message.target) for message in self.messages}
        subgraphs: dict[int, Subgraph] = {}
        for stage in range(self.num_stages):
            forward, backward = self.forward_phase(stage), self.backward_phase(stage)
            first = self._closure(members[forward], outputs[forward], set())
            second = self._closure(members[backward], outputs[backward], first.ops)
            for name in second.inputs:
                if (name, stage) not in received:
                    outputs[forward][name] = None
            subgraphs[forward] = first.to_subgraph(self.graph, outputs[forward])
            subgraphs[backward] = second.to_subgraph(self.graph, outputs[backward])
        return tuple(subgraphs[phase] for phase in range(num_phases))

    def _closure(
        self, members: set[int], outputs: dict[str, None], forward_ops: set[int]
    ) -> SubgraphClosure:
        """Returns the ops of a phase, including recomputed ones, and its inputs.

        Args:
            members: indices of the ops assigned to the phase.
            outputs: names of the tensors that it returns.
            forward_ops: ops of the same stage's forward phase, whose outputs can be stored.
        """

        def is_input(tensor: Any, index: int) -> bool:
            is_stored = index in forward_ops and tensor.op.type != "Const"
            return self.phases.get(index, _ANY_PHASE) != _ANY_PHASE or is_stored

        tensors = (self.tensor(name) for name in outputs)
        return collect_closure(self.graph, members, tensors, is_input)
