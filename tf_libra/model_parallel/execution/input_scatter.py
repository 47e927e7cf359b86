"""Transfer of examples from the ranks that pass them to the ranks that compute them."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tf_libra.model_parallel.execution.output_gather import resize_axis
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.batch_sharding import BatchShards, ExampleRange
from tf_libra.model_parallel.partition.resharding import concat, slice_range

Values = dict[str, Any]
ReplicaGroup = tuple[int, ...]


class _Transfer(NamedTuple):
    """Examples that one rank passes and another computes.

    Attributes:
        peer: the other rank, or this one.
        ranges: by microbatch, the examples.
    """

    peer: int
    ranges: tuple[ExampleRange, ...]


class _PendingInput(NamedTuple):
    """Examples of an argument that come from one rank.

    Attributes:
        wait: waits for the tensor and returns it.
        available: range that the tensor covers.
        ranges: by microbatch, the part of this range.
    """

    wait: Callable[[], Any]
    available: ExampleRange
    ranges: tuple[ExampleRange, ...]


class MicrobatchInputs:
    """Arguments that a rank computes with in one step.

    A rank waits only for the examples of the requested microbatch. Later examples arrive while it
    computes.
    """

    def __init__(
        self,
        axes: Mapping[str, int | None],
        shared: Mapping[ReplicaGroup, Mapping[str, Any]],
        pending: Mapping[ReplicaGroup, Mapping[str, Sequence[_PendingInput]]],
    ) -> None:
        """Waits for nothing yet.

        Args:
            axes: by argument with examples, its batch axis.
            shared: by replica group, arguments without examples.
            pending: by replica group, arguments with examples.
        """
        self._axes = axes
        self._shared = shared
        self._pending = pending
        self._cache: dict[tuple[ReplicaGroup, int], Values] = {}

    def get(self, group: ReplicaGroup, microbatch: int) -> Values:
        """Returns this rank's examples of a microbatch, by argument; raises as `receive` does."""
        key = (group, microbatch)
        if key not in self._cache:
            self._cache[key] = self._assemble(group, microbatch)
        return self._cache[key]

    def _assemble(self, group: ReplicaGroup, microbatch: int) -> Values:
        values = dict(self._shared[group])
        for name, inputs in self._pending[group].items():
            axis = self._axes[name]
            parts = [
                slice_range(source.wait(), axis, source.available, source.ranges[microbatch])
                for source in inputs
                if source.ranges[microbatch].size
            ]
            values[name] = concat(parts, axis)
        return values


class InputScatter:
    """Transfers of examples in every step, on one rank."""

    def __init__(
        self,
        shards: BatchShards,
        needs: Mapping[ReplicaGroup, Collection[str]],
        axes: Mapping[str, int | None],
        arguments: Sequence[str],
        transport: Transport,
    ) -> None:
        """Plans the transfers.

        Args:
            shards: division of examples among ranks.
            needs: by replica group, the arguments that it needs.
            axes: by argument with examples, its batch axis.
            arguments: all arguments, in the step's order.
            transport: transport to the other ranks.
        """
        self._shards = shards
        self._axes = axes
        self._needs = {
            group: [name for name in arguments if name in names] for group, names in needs.items()
        }
        self._transport = transport
        own, layout = transport.rank, shards.layout
        self._sends = {
            group: [
                _Transfer(rank, self._common_ranges(group, rank, own))
                for rank in group
                if rank != own
            ]
            for group in layout.replica_groups
        }
        self._receives = {
            group: [
                _Transfer(rank, self._common_ranges(group, own, rank))
                for rank in range(layout.num_ranks)
            ]
            for group in layout.replica_groups
            if own in group
        }

    def _common_ranges(
        self, group: ReplicaGroup, computing: int, passing: int
    ) -> tuple[ExampleRange, ...]:
        """Returns, by microbatch, the examples that one rank computes and another one passes."""
        passed = self._shards.passed_range(passing)
        return tuple(
            self._shards.computed_range(group, computing, microbatch) & passed
            for microbatch in range(self._shards.layout.num_microbatches)
        )

    def scatter(self, arguments: Mapping[str, Any]) -> MicrobatchInputs:
        """Sends examples to other ranks, and starts to receive those that this rank computes.

        Args:
            arguments: the arguments that this rank passes.
        """
        for name, axis in self._axes.items():
            for number, (group, transfers) in enumerate(self._sends.items()):
                if name in self._needs[group]:
                    self._send(arguments[name], axis, transfers, f"argument {name} {number}")
        shared: dict[ReplicaGroup, dict[str, Any]] = {group: {} for group in self._receives}
        pending: dict[ReplicaGroup, dict[str, list[_PendingInput]]] = {
            group: {} for group in self._receives
        }
        for group, transfers in self._receives.items():
            number = self._shards.layout.replica_groups.index(group)
            for name in self._needs[group]:
                if name in self._axes:
                    pending[group][name] = self._start_receives(
                        arguments[name], self._axes[name], transfers, f"argument {name} {number}"
                    )
                else:
                    shared[group][name] = arguments[name]
        return MicrobatchInputs(self._axes, shared, pending)

    def _send(
        self, argument: Any, axis: int | None, transfers: Sequence[_Transfer], name: str
    ) -> None:
        passed = self._shards.passed_range(self._transport.rank)
        for peer, ranges in transfers:
            parts = [slice_range(argument, axis, passed, each) for each in ranges if each.size]
            if parts:
                self._transport.send(concat(parts, axis), peer, name)

    def _start_receives(
        self, argument: Any, axis: int | None, transfers: Sequence[_Transfer], name: str
    ) -> list[_PendingInput]:
        """Starts to receive the examples of an argument from all ranks that pass some."""
        assert axis is not None
        inputs = []
        for peer, ranges in transfers:
            size = sum(each.size for each in ranges)
            if peer == self._transport.rank:
                passed = self._shards.passed_range(peer)
                inputs.append(_PendingInput(lambda: argument, passed, ranges))
            elif size:
                shape = resize_axis(argument.shape, axis, size)
                wait = self._transport.start_receive(argument.dtype, shape, peer, name)
                packed = _pack_ranges(ranges)
                inputs.append(_PendingInput(functools.cache(wait), ExampleRange(0, size), packed))
        return inputs


def _pack_ranges(ranges: Sequence[ExampleRange]) -> tuple[ExampleRange, ...]:
    """Returns ranges of the same sizes that follow each other from 0."""
    packed, start = [], 0
    for each in ranges:
        packed.append(ExampleRange(start, start + each.size))
        start += each.size
    return tuple(packed)
