"""Assignment of the update to stages, once all gradients are complete.

A stage computes all that depends only on its own gradients and variables. Every rank computes what
depends on several stages, such as a global norm or a check that all gradients are finite: stages
broadcast the inputs of such ops.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.recorded_step import REDUCTION
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.subgraph import Subgraph, collect_closure


@dataclass(frozen=True)
class UpdateBroadcast:
    """Tensor that one stage computes and all other stages need.

    Attributes:
        tensor: its name in the trace.
        source: the stage that computes it.
        round: the round of computation that needs it; round 0 needs none.
    """

    tensor: str
    source: int
    round: int


class UpdatePhase:
    """The update of a partitioned step, in rounds of computation with broadcasts between them.

    Attributes:
        broadcasts: tensors that stages broadcast.
        outputs: by name of each tensor that the step returns and the update computes, the stage
            that computes it; None if every rank does.
        variables: by placeholder, the stage that updates each variable; every rank updates the
            other variables.
    """

    def __init__(self, partition: StagePartition) -> None:
        """Assigns the ops of the update.

        Raises:
            ValueError: an op writes to variables of several stages, or depends on examples.
        """
        self._partition = partition
        self._graph = graph = partition.graph
        per_example = {id(tensor) for tensor in graph.microbatch_outputs}
        outputs = [tensor for tensor in graph.outputs if id(tensor) not in per_example]
        output_ops = [graph.op_index[tensor.op.name] for tensor in outputs]
        self._ops = sorted(graph.closure([*graph.update_effects, *output_ops]))
        for index in self._ops:
            if graph.is_per_example[index]:
                raise ValueError(
                    f"{graph.recording.name}: {graph.ops[index].name} depends on examples, and an"
                    " op of the update depends on it; stages update once, after all examples"
                )
        self._stage_of_op: dict[int, int | None] = {}
        self.variables = self._assign_variables()
        self.broadcasts = self._find_broadcasts()
        self.outputs = {
            tensor.name: self._stage_of_op[graph.op_index[tensor.op.name]] for tensor in outputs
        }

    @property
    def num_rounds(self) -> int:
        """The number of rounds of computation, with broadcasts before each but the first."""
        return 1 + max((broadcast.round for broadcast in self.broadcasts), default=0)

    def subgraph(self, stages: Collection[int], round_index: int) -> Subgraph:
        """Returns the ops of a rank with these stages in one round; the last round updates."""
        if round_index == self.num_rounds - 1:
            own = {None, *stages}
            effects = [i for i in self._graph.update_effects if self._stage_of_op[i] in own]
            outputs = [name for name, stage in self.outputs.items() if stage in own]
            return self._build_subgraph(stages, round_index, effects, outputs)
        outputs = [
            broadcast.tensor
            for broadcast in self.broadcasts
            if broadcast.source in stages and broadcast.round == round_index + 1
        ]
        return self._build_subgraph(stages, round_index, (), outputs)

    def _build_subgraph(
        self, stages: Collection[int], round_index: int, effects: Iterable[int], outputs: list[str]
    ) -> Subgraph:
        received = {
            broadcast.tensor for broadcast in self.broadcasts if broadcast.round <= round_index
        }
        received -= {
            broadcast.tensor for broadcast in self.broadcasts if broadcast.source in stages
        }

        def is_input(tensor: Any, _: int) -> bool:
            return tensor.op.type == REDUCTION or tensor.name in received

        tensors = (self._partition.tensor(name) for name in outputs)
        closure = collect_closure(self._graph, effects, tensors, is_input)
        return closure.to_subgraph(self._graph, outputs)

    def _assign_variables(self) -> dict[str, int]:
        """Returns the stage of each variable, without the variables that belong to every rank."""
        shared = self._find_scalar_state()
        while True:
            stages = self._propagate_stages(shared)
            if shared.isdisjoint(stages):
                return stages
            shared -= stages.keys()

    def _find_scalar_state(self) -> set[str]:
        """Returns scalars that layers only read and the update writes, such as a loss scale.

        Every rank can update them by itself, unless the update takes tensors of one stage.
        """
        graph = self._graph
        trained = {graph.placeholder_of(var) for var in graph.recording.variables.values()}
        written_by_microbatch = {
            handle for index in graph.microbatch_effects for handle in graph.handles[index]
        }
        updated = {handle for index in graph.update_effects for handle in graph.handles[index]}
        variables = graph.recording.concrete.graph.variables
        scalars = {graph.placeholder_of(var) for var in variables if var.shape.rank == 0}
        return (updated & graph.owner_region.keys() & scalars) - trained - written_by_microbatch

    def _propagate_stages(self, shared: Collection[str]) -> dict[str, int]:
        """Returns the stages of variables, and assigns ops to stages, to a fixed point.

        Args:
            shared: variables that belong to no layer.
        """
        graph, partition = self._graph, self._partition
        stages = {
            handle: partition.stage_of_variable(handle)
            for handle in graph.owner_region
            if handle not in shared
        }
        self._stage_of_op = {}
        num_known = -1
        while len(stages) > num_known:
            num_known = len(stages)
            for index in self._ops:
                op = graph.ops[index]
                if op.type == REDUCTION:
                    self._stage_of_op[index] = partition.stage_of_gradient(op.name)
                    continue
                sources = {self._stage_of_op[i] for i in graph.input_indices(index)} - {None}
                used = {stages[handle] for handle in graph.handles[index] if handle in stages}
                if used and len(sources | used) > 1:
                    raise self._several_stages_error(index, graph.handles[index][0])
                candidates = sources | used
                stage = candidates.pop() if len(candidates) == 1 else None
                self._stage_of_op[index] = stage
                if graph.is_write[index] and stage is not None:
                    for handle in graph.handles[index]:
                        if stages.setdefault(handle, stage) != stage:
                            raise self._several_stages_error(index, handle)
        return stages

    def _several_stages_error(self, index: int, placeholder: str) -> ValueError:
        graph = self._graph
        return ValueError(
            f"{graph.recording.name}: {graph.ops[index].name} updates"
            f" {graph.variable_name(placeholder)!r} together with values of other stages; each"
            " stage must be able to update its variables by itself. A condition needs results of"
            " static shapes and no effect except on variables"
        )

    def _find_broadcasts(self) -> tuple[UpdateBroadcast, ...]:
        graph = self._graph
        rounds: dict[int, int] = {}
        broadcasts: dict[str, UpdateBroadcast] = {}
        for index in self._ops:
            if graph.ops[index].type == REDUCTION:
                rounds[index] = 0
                continue
            needed_round = 0
            for tensor in graph.ops[index].inputs:
                producer = graph.op_index[tensor.op.name]
                source = self._stage_of_op[producer]
                available_round = rounds[producer]
                if self._stage_of_op[index] is None and source is not None:
                    available_round += 1
                    broadcasts[tensor.name] = UpdateBroadcast(tensor.name, source, available_round)
                    self._check_broadcast(tensor)
                needed_round = max(needed_round, available_round)
            rounds[index] = needed_round
        return tuple(broadcasts.values())

    def _check_broadcast(self, tensor: Any) -> None:
        graph = self._graph
        name = graph.recording.name
        if not tensor.shape.is_fully_defined() or tensor.dtype in (tf.resource, tf.variant):
            raise ValueError(
                f"{name}: all stages need {tensor.op.name}, which cannot be sent: its dtype is"
                f" {tensor.dtype.name} and its shape is {tensor.shape}"
            )
        effects = {graph.ops[index].name for index in graph.update_effects}
        for index in graph.closure([graph.op_index[tensor.op.name]]):
            predecessors = {op.name for op in graph.ops[index].control_inputs}
            if predecessors & effects and graph.ops[index].type == "ReadVariableOp":
                variable = graph.variable_name(graph.handles[index][0])
                raise ValueError(
                    f"{name}: all stages need {tensor.op.name}, which reads {variable!r} after its"
                    " update, when stages exchange nothing; compute values of several stages, such"
                    " as the norm of all weights, before apply_gradients, or outside of the step"
                    " after synchronize_variables()"
                )
