"""Samples go from the ranks that pass them to those that compute them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tf_libra.pipelines.exchanging import joined, sliced
from tf_libra.pipelines.returning import resized
from tf_libra.pipelines.shares import Range, Shares
from tf_libra.pipelines.transport import Transport

Values = dict[str, Any]
Team = tuple[int, ...]


class _Passed(NamedTuple):
    """What one rank passes on of an argument to another, or keeps.

    Attributes:
        rank: the other; or this one.
        parts: by microbatch, of the joint batch.
    """

    rank: int
    parts: tuple[Range, ...]


class Distribution:
    """Who sends which samples to whom in every step, on one rank."""

    def __init__(
        self,
        shares: Shares,
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
        """By microbatch, what one rank computes of what one passes."""
        passed = self._shares.passed(passing)
        return tuple(
            self._shares.computed(team, computing, number) & passed for number in self._microbatches
        )

    def __call__(self, given: Mapping[str, Any]) -> dict[Team, list[Values]]:
        """Sends samples to who needs them; those that this rank needs, by team and microbatch.

        Args:
            given: the arguments that this rank passes.
        """
        for name, axis in self._axes.items():
            for number, (team, passes) in enumerate(self._passes.items()):
                if name in self._needs[team]:
                    self._send(given[name], axis, passes, f"argument {name} {number}")
        found: dict[Team, list[Values]] = {
            team: [{} for _ in self._microbatches] for team in self._takes
        }
        for team, batches in found.items():
            number = self._shares.layout.teams.index(team)
            for name in self._needs[team]:
                values = [given[name]] * len(batches)
                if name in self._axes:
                    takes, key = self._takes[team], f"argument {name} {number}"
                    values = self._gathered(given[name], self._axes[name], takes, key)
                for batch, value in zip(batches, values, strict=True):
                    batch[name] = value
        return found

    def _send(self, given: Any, axis: int | None, passes: Sequence[_Passed], key: str) -> None:
        passed = self._shares.passed(self._transport.rank)
        for rank, wanted in passes:
            parts = [sliced(given, axis, passed, one) for one in wanted if one.size]
            if parts:
                self._transport.send(joined(parts, axis), rank, key)

    def _gathered(
        self, given: Any, axis: int | None, takes: Sequence[_Passed], key: str
    ) -> list[Any]:
        """By microbatch, what all ranks pass of it."""
        assert axis is not None
        parts: list[list[Any]] = [[] for _ in self._microbatches]
        for rank, wanted in takes:
            size = sum(one.size for one in wanted)
            if rank == self._transport.rank:
                there, whole, places = given, self._shares.passed(rank), wanted
            elif size:
                shape = resized(given.shape, axis, size)
                there = self._transport.receive(given.dtype, shape, rank, key)
                whole, places = Range(0, size), _one_behind_the_other(wanted)
            else:
                continue
            for own, place in zip(parts, places, strict=True):
                if place.size:
                    own.append(sliced(there, axis, whole, place))
        return [joined(own, axis) for own in parts]


def _one_behind_the_other(parts: Sequence[Range]) -> tuple[Range, ...]:
    found, start = [], 0
    for one in parts:
        found.append(Range(start, start + one.size))
        start += one.size
    return tuple(found)
