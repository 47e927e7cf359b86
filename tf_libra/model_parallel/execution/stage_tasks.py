"""Computations of a stage on a rank, with the tensors that it receives before and sends after."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import tensorflow as tf

from tf_libra.model_parallel.execution.gradient_reduction import (
    DeferredReduction,
    GradientReduction,
)
from tf_libra.model_parallel.execution.input_scatter import Values
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.batch_sharding import BatchShards, ExampleRange
from tf_libra.model_parallel.partition.deferred_gradients import (
    DeferredGradient,
    find_deferred_gradients,
    without_deferred,
)
from tf_libra.model_parallel.partition.resharding import (
    Resharding,
    ReshardingPiece,
    plan_resharding,
    slice_range,
)
from tf_libra.model_parallel.partition.sized_traces import SizedPartition
from tf_libra.model_parallel.partition.stage_partition import StageMessage, StagePartition
from tf_libra.model_parallel.partition.subgraph import Subgraph, SubgraphExtractor

# A function without a subgraph runs its epilogue alone.
NO_OPS = Subgraph((), (), (), ())


@dataclass(frozen=True)
class SubgraphFunction:
    """Function of a subgraph that is called with tensors by name.

    Attributes:
        run: the function of a list of tensors.
        arguments: names of the step's arguments that it takes.
        inputs: names of its other input tensors.
        sums: reductions whose sums it takes, and stored tensors of microbatches; see `tensor_key`.
        outputs: names of its outputs; see `sum_key` for sums.
        captures: placeholders of the captured tensors that it uses.
    """

    run: Callable[[Sequence[Any]], list[Any]]
    arguments: tuple[str, ...]
    inputs: tuple[str, ...]
    sums: tuple[str, ...]
    outputs: tuple[str, ...]
    captures: frozenset[str]

    @classmethod
    def build(
        cls,
        extractor: SubgraphExtractor,
        subgraph: Subgraph,
        reduction: GradientReduction | DeferredReduction | None = None,
        replica: int = 0,
    ) -> "SubgraphFunction":
        """Returns the function of a subgraph.

        Args:
            extractor: function extractor of the trace.
            subgraph: the subgraph.
            reduction: reduction of its gradients; None if it computes none.
            replica: index of the replica in its stage.
        """
        inputs = [*(f"{name}:0" for name in subgraph.arguments), *subgraph.inputs]
        outputs: tuple[str, ...] = subgraph.outputs
        sums: tuple[str, ...] = ()
        if reduction is not None:
            plain_outputs = (subgraph.outputs[index] for index in reduction.plain_outputs)
            outputs = (*plain_outputs, *map(sum_key, reduction.names))
            sums = reduction.inputs
        return cls(
            extractor.extract(subgraph.ops, inputs, subgraph.outputs, reduction, replica),
            subgraph.arguments,
            subgraph.inputs,
            sums,
            outputs,
            extractor.captures(subgraph.ops, subgraph.outputs),
        )

    def __call__(
        self,
        arguments: Mapping[str, Any],
        values: Mapping[str, Any],
        sums: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Runs the function.

        Args:
            arguments: the step's arguments by name.
            values: tensors by name.
            sums: by reduction, the sums over earlier microbatches; and stored tensors by key.

        Returns:
            The outputs by name, with sums under their `sum_key`.
        """
        inputs = [arguments[name] for name in self.arguments]
        inputs += [values[name] for name in self.inputs]
        inputs += [(sums or {})[name] for name in self.sums]
        return dict(zip(self.outputs, self.run(inputs), strict=True))


def sum_key(reduction: str) -> str:
    """Returns the name of a gradient's sum over microbatches, which becomes the average."""
    return f"sum of {reduction}"


class PeerTensor(NamedTuple):
    """Tensor that another rank sends in every microbatch.

    Attributes:
        tensor: name of the tensor.
        peer: the sender.
        dtype: dtype of the part that this rank receives.
        shape: shape of this part.
        target: the stage that takes the tensor.
    """

    tensor: str
    peer: int
    dtype: Any
    shape: list[int]
    target: int


class DeferredComputation(NamedTuple):
    """Computation of a stage after its last microbatch.

    Attributes:
        after: index of the last microbatch.
        tensors: names of the tensors of every microbatch that it takes.
        function: returns the averages of the stage's gradients.
    """

    after: int
    tensors: tuple[str, ...]
    function: SubgraphFunction


@dataclass(frozen=True)
class StageComputation:
    """Forward or backward computation of a stage, on one rank.

    Attributes:
        functions: function by microbatch.
        summed: names of the reductions of which a function returns the sum.
        receives: tensors to receive before it.
        peer_tensors: the parts of `receives` that come from other ranks.
        sends: tensors to send after it.
        returns: names of its outputs that the step returns.
        sends_itself: the microbatch whose function sends, before it all-reduces; None if there is
            none.
        deferred: computation of the gradients that wait for all microbatches; None without any.
    """

    functions: Mapping[int, SubgraphFunction]
    summed: tuple[str, ...]
    receives: tuple[Resharding, ...]
    peer_tensors: tuple[PeerTensor, ...]
    sends: tuple[Resharding, ...]
    returns: tuple[str, ...]
    sends_itself: int | None
    deferred: DeferredComputation | None = None


class StageComputationBuilder:
    """Builds the computations of one rank."""

    def __init__(self, shards: BatchShards, returned: Sequence[str], transport: Transport) -> None:
        """Builds nothing yet.

        Args:
            shards: division of examples among ranks.
            returned: names of the tensors of a microbatch that the step returns.
            transport: transport to the other ranks.
        """
        self._shards = shards
        self._layout = shards.layout
        self._returned = returned
        self._transport = transport

    def build(self, sized: SizedPartition, kind: str, stage: int) -> StageComputation:
        """Returns the computation of a stage.

        Args:
            sized: the step, traced for the examples of a microbatch that this rank computes.
            kind: "forward" or "backward".
            stage: a stage of this rank.
        """
        partition, rank = sized.partition, self._transport.rank
        phase = (
            partition.forward_phase(stage) if kind == "forward" else partition.backward_phase(stage)
        )

        def reshard(message: StageMessage, is_sender: bool) -> Resharding:
            return plan_resharding(partition, sized.axes, self._shards, message, rank, is_sender)

        sends = tuple(
            reshard(message, is_sender=True)
            for message in partition.messages
            if message.send_phase == phase
        )
        receives = tuple(
            reshard(message, is_sender=False)
            for message in partition.messages
            if message.receive_phase == phase and message.target == stage
        )
        returns = tuple(
            name
            for name in self._returned
            if partition.phase_of_tensor(partition.tensor(name)) == phase
        )
        microbatches = [
            task.microbatch
            for task in self._layout.orders[rank]
            if (task.kind, task.stage) == (kind, stage)
        ]
        subgraph = partition.subgraphs[phase]
        sends_itself, deferring = None, None
        summed: tuple[str, ...] = ()
        if kind == "forward":
            functions = dict.fromkeys(microbatches, self._function(sized, subgraph, stage))
        else:
            used_tensors = {*returns, *(resharding.message.tensor for resharding in sends)}
            deferred: tuple[DeferredGradient, ...] = ()
            if len(microbatches) > 1:
                deferred = find_deferred_gradients(partition, stage, len(microbatches))
            subgraph = without_deferred(subgraph, deferred)
            initial = GradientReduction.for_stage(partition, stage, used_tensors, deferred)
            last, summed = microbatches[-1], initial.names
            final = self._final_reduction(initial, partition, stage, sends, last)
            if deferred:
                deferring = self._defer(sized, stage, final, deferred, microbatches)
                final = replace(initial, accumulates=True)
            reductions = self._reductions(initial, final, microbatches)
            built = {
                id(reduction): self._function(sized, subgraph, stage, reduction)
                for reduction in reductions.values()
            }
            functions = {m: built[id(reduction)] for m, reduction in reductions.items()}
            sends_itself = last if reductions[last].groups else None
        peer_tensors = self._find_peer_tensors(partition, receives)
        return StageComputation(
            functions, summed, receives, peer_tensors, sends, returns, sends_itself, deferring
        )

    def _function(
        self,
        sized: SizedPartition,
        subgraph: Subgraph,
        stage: int,
        reduction: GradientReduction | None = None,
    ) -> SubgraphFunction:
        replica = self._layout.ranks[stage].index(self._transport.rank)
        return SubgraphFunction.build(sized.extractor, subgraph, reduction, replica)

    def _reductions(
        self, initial: GradientReduction, final: GradientReduction, microbatches: Sequence[int]
    ) -> dict[int, GradientReduction]:
        """Returns the gradient reduction of each microbatch, in the order of execution."""
        first, last = microbatches[0], microbatches[-1]
        reductions = dict.fromkeys(microbatches, replace(initial, accumulates=True))
        reductions[first] = initial
        reductions[last] = replace(final, accumulates=first != last)
        return reductions

    def _defer(
        self,
        sized: SizedPartition,
        stage: int,
        final: GradientReduction,
        deferred: tuple[DeferredGradient, ...],
        microbatches: Sequence[int],
    ) -> DeferredComputation:
        """Returns the computation of gradients that wait for all microbatches."""
        reduction = DeferredReduction.for_partition(
            sized.partition,
            replace(final, send=None),
            sized.partition.reductions[stage],
            deferred,
            sorted(microbatches),
        )
        function = SubgraphFunction.build(sized.extractor, NO_OPS, reduction)
        return DeferredComputation(microbatches[-1], tuple(reduction.tensors), function)

    def _final_reduction(
        self,
        reduction: GradientReduction,
        partition: StagePartition,
        stage: int,
        sends: tuple[Resharding, ...],
        microbatch: int,
    ) -> GradientReduction:
        """Returns the reduction of the last microbatch, which averages and may all-reduce."""
        groups, ranks = self._layout.stage_groups(stage), self._layout.ranks[stage]
        outputs = partition.subgraphs[partition.backward_phase(stage)].outputs

        def send(computed: list[Any]) -> None:
            values = dict(zip(outputs, computed, strict=True))
            for name in dict.fromkeys(resharding.message.tensor for resharding in sends):
                values[name] = tf.ensure_shape(values[name], partition.tensor(name).shape)
            send_tensors(self._transport, sends, microbatch, values)

        return replace(
            reduction,
            divisor=self._layout.num_microbatches * len(ranks),
            groups=groups,
            ranks=ranks,
            transport=self._transport,
            send=send if groups else None,
        )

    def _find_peer_tensors(
        self, partition: StagePartition, receives: Sequence[Resharding]
    ) -> tuple[PeerTensor, ...]:
        """Returns the tensors from other ranks, computed once to save time between tasks."""
        tensors = []
        for message, axis, pieces in receives:
            tensor = partition.tensor(message.tensor)
            for piece in pieces:
                shape = tensor.shape.as_list()
                if axis is not None:
                    shape[axis] = piece.local_range.size
                if piece.peer != self._transport.rank:
                    tensors.append(
                        PeerTensor(message.tensor, piece.peer, tensor.dtype, shape, message.target)
                    )
        return tuple(tensors)


def send_tensors(
    transport: Transport, sends: Sequence[Resharding], microbatch: int, values: Values
) -> None:
    """Sends tensors to other ranks, or adds the sends to the function that is being traced."""
    for message, axis, pieces in sends:
        for piece in pieces:
            if piece.peer != transport.rank:
                part = slice_for_peer(values[message.tensor], axis, piece)
                name = transfer_name(message.tensor, message.target, microbatch)
                transport.send(part, piece.peer, name)


def transfer_name(tensor: str, target: int, microbatch: int) -> str:
    """Returns the name of a transfer from stage to stage."""
    return f"{tensor} {target} {microbatch}"


def slice_for_peer(tensor: Any, axis: int | None, piece: ReshardingPiece) -> Any:
    """Returns the part of a tensor that a peer gets."""
    if axis is None:
        return tensor
    return slice_range(tensor, axis, ExampleRange(0, tensor.shape[axis]), piece.local_range)
