"""Divides a recorded step into stages: what each computes of a microbatch, and what it sends.

Stage s has two phases, forward s and backward 2n - 1 - s of n stages; so phases are numbered in the
order in which one microbatch passes them. Every op gets the phase of its layer, or the first one in
which all that it is computed from is there. What another stage needs of it is sent to that stage
directly, however many cuts lie between.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.recorded_step import REDUCTION
from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.capture.traced_ops import READS
from tf_libra.model_parallel.partition.subgraph import Gathered, Subgraph, gathered

_FREE = -1


@dataclass(frozen=True)
class StageMessage:
    """A tensor of a microbatch that one stage sends to another.

    Attributes:
        tensor: its name in the trace.
        source: the stage that computes it.
        target: the stage that needs it.
        sent_in: the phase after which it is sent.
        needed_in: the phase before which it is received.
    """

    tensor: str
    source: int
    target: int
    sent_in: int
    needed_in: int


class StagePartition:
    """A recorded step in stages.

    Attributes:
        graph: the step.
        num_stages: n.
        messages: all that is sent for a microbatch, in the order in which it is computed.
    """

    def __init__(self, graph: StepGraph, starts: Sequence[int]) -> None:
        """Cuts.

        Args:
            graph: the step.
            starts: for each stage its first layer, ascending from 0.

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
        self._endings = {
            name: region
            for region, one in enumerate(graph.recording.layer_ends)
            for name in one.gradients
        }
        self.phase = self._phases()
        self.variables = self._variables()
        self.messages = self._messages()

    def forward(self, stage: int) -> int:
        """The phase of a stage's forward computation."""
        return stage

    def backward(self, stage: int) -> int:
        """The phase of a stage's backward computation."""
        return 2 * self.num_stages - 1 - stage

    def stage_of(self, phase: int) -> int:
        """The stage whose phase it is."""
        return min(phase, 2 * self.num_stages - 1 - phase)

    def stage_of_variable(self, placeholder: str) -> int:
        """The stage to which a variable belongs."""
        return self._stage_of_region[self.graph.region_of_variable(placeholder)]

    def _phases(self) -> dict[int, int]:
        graph = self.graph
        phase: dict[int, int] = {}
        for place in sorted(graph.microbatch_ops):
            op = graph.ops[place]
            if op.type == REDUCTION:
                continue
            if graph.is_recomputable[place] or op.type == "Placeholder":
                phase[place] = _FREE
                continue
            found = max((phase[i] for i in graph.input_indices(place)), default=_FREE)
            if op.type in READS and not graph.is_pinned(place):
                for handle in graph.handles[place]:
                    found = max(found, self.stage_of_variable(handle))
            elif graph.is_pinned(place):
                found = max(found, self._stage_of_region[graph.region(place)])
                for handle in graph.handles[place]:
                    found = max(found, self.stage_of_variable(handle))
            elif op.name in self._endings:
                stage = self._stage_of_region[self._endings[op.name]]
                found = max(found, self.backward(stage))
            elif found == _FREE:  # a random number, say, that backward computation draws
                found = self.num_stages - 1
            phase[place] = found
            for handle in graph.handles[place]:
                if self.stage_of(found) != self.stage_of_variable(handle):
                    raise ValueError(
                        f"{graph.recording.name}: {op.name} uses {graph.variable_name(handle)!r}"
                        " in another stage than the layer that it belongs to"
                    )
        return phase

    def _variables(self) -> list[list[str]]:
        """Returns, by stage, the reductions whose variables the stage updates."""
        found: list[list[str]] = [[] for _ in range(self.num_stages)]
        for name, gradient in self.graph.gradients.items():
            stage = self.stage_of_gradient(name)
            if self.phase[self.graph.op_index[gradient.op.name]] > self.backward(stage):
                raise ValueError(
                    f"{self.graph.recording.name}: the gradient that {gradient.op.name} computes"
                    " is known only after the stage of its variable has ended"
                )
            found[stage].append(name)
        return found

    def stage_of_gradient(self, reduction: str) -> int:
        """The stage that updates the variable of a gradient."""
        return self._stage_of_region[self._region_of(reduction)]

    def layer_of_gradient(self, reduction: str) -> int:
        """The layer whose variable a gradient is of."""
        region = self._region_of(reduction)
        layers = self.graph.layers
        return next(i for i, one in enumerate(layers) if one.start <= region < one.stop)

    def _region_of(self, reduction: str) -> int:
        handle = self.graph.placeholder_of(self.graph.recording.variables[reduction])
        assert handle is not None, reduction
        return self.graph.region_of_variable(handle)

    def _uses(self) -> list[tuple[Any, int]]:
        """Every tensor of a microbatch, with a phase in which it is needed."""
        graph = self.graph
        found = []
        for place in sorted(graph.microbatch_ops):
            for one in graph.ops[place].inputs:
                if graph.ops[place].type != REDUCTION and self.phase[place] != _FREE:
                    found.append((one, self.phase[place]))
        for name, gradient in graph.gradients.items():
            found.append((gradient, self.backward(self.stage_of_gradient(name))))
        return found

    def _messages(self) -> tuple[StageMessage, ...]:
        needed: dict[tuple[str, int], int] = {}
        order: dict[str, tuple[int, Any]] = {}
        for tensor, needed_in in self._uses():
            place = self.graph.op_index[tensor.op.name]
            made_in = self.phase[place]
            target = self.stage_of(needed_in)
            if made_in == _FREE or self.stage_of(made_in) == target:
                continue
            if tensor.dtype in (tf.resource, tf.variant, tf.string):
                raise ValueError(
                    f"{self.graph.recording.name}: {tensor.op.name} would have to be sent from one"
                    f" stage to another, which a {tensor.dtype.name} cannot"
                )
            if not tensor.shape.is_fully_defined():
                raise ValueError(
                    f"{self.graph.recording.name}: {tensor.op.name} would have to be sent from one"
                    f" stage to another, and its shape, {tensor.shape}, is known only in a step"
                )
            key = (tensor.name, target)
            needed[key] = min(needed.get(key, needed_in), needed_in)
            order[tensor.name] = (place, tensor)
        messages = [
            StageMessage(
                name, self.stage_of(self.phase[order[name][0]]), target,
                self.phase[order[name][0]], needed_in,
            )
            for (name, target), needed_in in needed.items()
        ]  # fmt: skip
        return tuple(sorted(messages, key=lambda m: (m.sent_in, order[m.tensor][0], m.target)))

    def tensor(self, name: str) -> Any:
        """A tensor of the trace by its name."""
        return self.graph.recording.concrete.graph.get_tensor_by_name(name)

    def phase_of(self, tensor: Any) -> int:
        """The phase in which a tensor is computed; that of the last stage where any could."""
        phase = self.phase[self.graph.op_index[tensor.op.name]]
        return self.num_stages - 1 if phase == _FREE else phase

    @cached_property
    def parts(self) -> tuple[Subgraph, ...]:
        """The subgraph of each phase."""
        members: list[set[int]] = [set() for _ in range(2 * self.num_stages)]
        wanted: list[dict[str, None]] = [{} for _ in members]
        for place, phase in self.phase.items():
            if phase != _FREE:
                members[phase].add(place)
        for one in self.graph.microbatch_outputs:
            wanted[self.phase_of(one)][one.name] = None
        for name, gradient in self.graph.gradients.items():
            wanted[self.backward(self.stage_of_gradient(name))][gradient.name] = None
        for message in self.messages:
            wanted[message.sent_in][message.tensor] = None
        received = {(m.tensor, m.target) for m in self.messages}
        parts: list[Subgraph | None] = [None] * len(members)
        for stage in range(self.num_stages):
            forward, backward = self.forward(stage), self.backward(stage)
            first = self._gathered(members[forward], wanted[forward], set())
            later = self._gathered(members[backward], wanted[backward], first.ops)
            for name in later.takes:
                if (name, stage) not in received:
                    wanted[forward][name] = None
            parts[forward] = first.part(self.graph, wanted[forward])
            parts[backward] = later.part(self.graph, wanted[backward])
        return tuple(one for one in parts if one is not None)

    def _gathered(self, members: set[int], wanted: dict[str, None], there: set[int]) -> Gathered:
        """Returns a part's ops, including recomputed ones, its arguments, and its other inputs.

        Args:
            members: its own ops.
            wanted: names of the tensors that it returns.
            there: ops of the stage's part before, whose outputs can be kept.
        """

        def is_given(one: Any, place: int) -> bool:
            is_kept = place in there and one.op.type != "Const"
            return self.phase.get(place, _FREE) != _FREE or is_kept

        return gathered(self.graph, members, (self.tensor(name) for name in wanted), is_given)
