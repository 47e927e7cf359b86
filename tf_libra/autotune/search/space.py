"""The settings that a search may try."""

import itertools
from dataclasses import dataclass
from typing import Protocol

from tf_libra.planning.comm_config import CommConfig
from tf_libra.planning.strategy import Draft, Strategy
from tf_libra.specs.backward_profile import BackwardProfile


class Searched(Strategy, Protocol):
    """A strategy whose setting can be searched; its threads are those that it allows."""

    @property
    def streams(self) -> tuple[int, ...]:
        """The numbers of concurrent all-reduces that may be tried, ascending."""
        ...

    @property
    def exploration(self) -> float:
        """The bandit's C (AIACC, section VI)."""
        ...

    @property
    def seed(self) -> int:
        """The seed of the searchers."""
        ...

    def unit_sizes(self, profile: BackwardProfile) -> tuple[int, ...]:
        """The sizes of all-reduces that may be tried, ascending."""
        ...

    def pack(self, profile: BackwardProfile, setting: CommConfig) -> Draft:
        """Returns the draft that a setting makes of a profile."""
        ...


@dataclass(frozen=True)
class Space:
    """Every combination of these; each ascending, none empty.

    Attributes:
      unit_bytes: sizes of a unit.
      num_streams: numbers of concurrent all-reduces.
      num_threads: threads of each.
    """

    unit_bytes: tuple[int, ...]
    num_streams: tuple[int, ...]
    num_threads: tuple[int, ...]

    @classmethod
    def of(cls, strategy: Searched, profile: BackwardProfile, runs_streams: bool) -> "Space":
        """Returns the settings a strategy may try; with one stream if the engine runs no more."""
        streams = strategy.streams if runs_streams else (1,)
        return cls(strategy.unit_sizes(profile), streams, strategy.allowed_threads)

    @property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """Unit sizes, streams, threads."""
        return self.unit_bytes, self.num_streams, self.num_threads

    @property
    def size(self) -> int:
        """Number of settings."""
        return len(self.unit_bytes) * len(self.num_streams) * len(self.num_threads)

    def at(self, place: tuple[int, ...]) -> CommConfig:
        """The setting with these places on the axes."""
        return CommConfig(*(axis[i] for axis, i in zip(self.axes, place, strict=True)))

    def place(self, setting: CommConfig) -> tuple[int, ...]:
        """Returns a setting's place on the axes, or the nearest place, by ratio."""
        wanted = (setting.unit_bytes, setting.num_streams, setting.num_threads)
        return tuple(
            min(range(len(axis)), key=lambda i: max(axis[i] / value, value / axis[i]))
            for axis, value in zip(self.axes, wanted, strict=True)
        )

    def nearest(self, setting: CommConfig) -> CommConfig:
        """The setting here that is nearest to one from elsewhere."""
        return self.at(self.place(setting))

    def coarse_to_fine(self) -> list[tuple[int, ...]]:
        """All places: ends and middles of the axes first, then what lies between."""
        ranks = [_bisected(len(axis)) for axis in self.axes]
        places = itertools.product(*(range(len(axis)) for axis in self.axes))
        return sorted(places, key=lambda p: (sum(r[i] for r, i in zip(ranks, p, strict=True)), p))


def _bisected(length: int) -> list[int]:
    """For each place of an axis, in which round of halving it is reached: the ends in none."""
    rounds = [0] * length
    spans = [(0, length - 1)]
    depth = 1
    while spans:
        halves = []
        for low, high in spans:
            if high - low > 1:
                middle = (low + high) // 2
                rounds[middle] = depth
                halves += [(low, middle), (middle, high)]
        spans, depth = halves, depth + 1
    return rounds
