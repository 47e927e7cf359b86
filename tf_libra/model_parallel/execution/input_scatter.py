"""Samples go from the ranks that pass them to those that compute them."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tf_libra.model_parallel.execution.output_gather import resized
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.batch_sharding import BatchShards, Range
from tf_libra.model_parallel.partition.resharding import joined, sliced

Values = dict[str, Any]
Team = tuple[int, ...]


class _Passed(NamedTuple):
    """The samples of an argument that one rank sends to another, or keeps.

    Attributes:
        rank: the other; or this one.
        parts: by microbatch, of the joint batch.
    """

    rank: int
    parts: tuple[Range, ...]


class _Coming(NamedTuple):
    """The samples of an argument that a rank takes from one rank to compute with.

    Attributes:
        get: waits for it.
        whole: which samples of the joint batch, or of these samples, it is.
        places: by microbatch, which of them.
    """

    get: Callable[[], Any]
    whole: Range
    places: tuple[Range, ...]


class Samples:
    """The arguments that a rank computes with in one step.

    A rank waits only for the samples that it needs next. Other ranks' samples arrive while it
    computes with the samples that are there.
    """

    def __init__(
        self,
        axes: Mapping[str, int | None],
        needed: Mapping[Team, Mapping[str, Any]],
        coming: Mapping[Team, Mapping[str, Sequence[_Coming]]],
    ) -> None:
        """Waits for nothing.

        Args:
            axes: by argument that has samples, along which axis.
            needed: by team, arguments that have no samples.
            coming: by team, those that have.
        """
        self._axes = axes
        self._needed = needed
        self._coming = coming
        self._found: dict[tuple[Team, int], Values] = {}

    def of(self, team: Team, microbatch: int) -> Values:
        """This rank's samples of one microbatch, by argument. Errors as for `receive`."""
        key = (team, microbatch)
        if key not in self._found:
            self._found[key] = self._joined(team, microbatch)
        return self._found[key]

    def _joined(self, team: Team, microbatch: int) -> Values:
        found = dict(self._needed[team])
        for name, pieces in self._coming[team].items():
            axis = self._axes[name]
            assert axis is not None
            parts = [
                sliced(one.get(), axis, one.whole, one.places[microbatch])
                for one in pieces
                if one.places[microbatch].size
            ]
            found[name] = joined(parts, axis)
        return found


class InputScatter:
    """The exchange of samples between ranks in every step, on one rank."""

    def __init__(
        self,
        shares: BatchShards,
        needs: Mapping[Team, Collection[str]],
        axes: Mapping[str, int | None],
        arguments: Sequence[str],
        transport: Transport,
    ) -> None:
        """Sends nothing yet.

        Args:
            shares: who passes and who computes which samples.
            needs: by ranks that share each microbatch, the arguments that they need.
            axes: by argument that has samples, along which axis.
            arguments: all of them, in the order of the step's.
            transport: reaches the other ranks.
        """
        self._shares = shares
        self._axes = axes
        self._needs = {
            team: [name for name in arguments if name in names] for team, names in needs.items()
        }
        self._transport = transport
        own, layout = transport.rank, shares.layout
        ranks, self._microbatches = range(layout.num_ranks), range(layout.num_microbatches)
        self._passes = {
            team: [_Passed(rank, self._common(team, rank, own)) for rank in team if rank != own]
            for team in layout.teams
        }
        self._takes = {
            team: [_Passed(rank, self._common(team, own, rank)) for rank in ranks]
            for team in layout.teams
            if own in team
        }

    def _common(self, team: Team, computing: int, passing: int) -> tuple[Range, ...]:
        """Returns, by microbatch, the samples that one rank computes and another one passes."""
        passed = self._shares.passed(passing)
        return tuple(
            self._shares.computed(team, computing, number) & passed for number in self._microbatches
        )

    def __call__(self, given: Mapping[str, Any]) -> Samples:
        """Sends samples to who needs them, and begins to receive those that this rank needs.

        Args:
            given: the arguments that this rank passes.
        """
        for name, axis in self._axes.items():
            for number, (team, passes) in enumerate(self._passes.items()):
                if name in self._needs[team]:
                    self._send(given[name], axis, passes, f"argument {name} {number}")
        needed: dict[Team, dict[str, Any]] = {team: {} for team in self._takes}
        coming: dict[Team, dict[str, list[_Coming]]] = {team: {} for team in self._takes}
        for team, takes in self._takes.items():
            number = self._shares.layout.teams.index(team)
            for name in self._needs[team]:
                if name in self._axes:
                    key = f"argument {name} {number}"
                    coming[team][name] = self._begun(given[name], self._axes[name], takes, key)
                else:
                    needed[team][name] = given[name]
        return Samples(self._axes, needed, coming)

    def _send(self, given: Any, axis: int | None, passes: Sequence[_Passed], key: str) -> None:
        passed = self._shares.passed(self._transport.rank)
        for rank, wanted in passes:
            parts = [sliced(given, axis, passed, one) for one in wanted if one.size]
            if parts:
                self._transport.send(joined(parts, axis), rank, key)

    def _begun(
        self, given: Any, axis: int | None, takes: Sequence[_Passed], key: str
    ) -> list[_Coming]:
        """Begins to receive the samples of an argument that all ranks pass."""
        assert axis is not None
        found = []
        for rank, wanted in takes:
            size = sum(one.size for one in wanted)
            if rank == self._transport.rank:
                whole = self._shares.passed(rank)
                found.append(_Coming(lambda: given, whole, wanted))
            elif size:
                shape = resized(given.shape, axis, size)
                expected = self._transport.expect(given.dtype, shape, rank, key)
                places = _one_behind_the_other(wanted)
                found.append(_Coming(functools.cache(expected), Range(0, size), places))
        return found


def _one_behind_the_other(parts: Sequence[Range]) -> tuple[Range, ...]:
    found, start = [], 0
    for one in parts:
        found.append(Range(start, start + one.size))
        start += one.size
    return tuple(found)
