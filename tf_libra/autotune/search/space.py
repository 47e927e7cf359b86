"""Search space: the settings that a search may try."""

import itertools
from dataclasses import dataclass
from typing import Protocol

from tf_libra.planning.data_parallel.aiacc import CommConfig
from tf_libra.planning.strategy import Draft, Strategy
from tf_libra.specs.backward_profile import BackwardProfile


class SearchableStrategy(Strategy, Protocol):
    """Strategy whose setting can be searched, with the threads that it allows."""

    @property
    def streams(self) -> tuple[int, ...]:
        """Numbers of concurrent all-reduces to try, ascending."""
        ...

    @property
    def exploration(self) -> float:
        """Exploration constant C of the bandit (AIACC, section VI)."""
        ...

    @property
    def seed(self) -> int:
        """Seed of the searchers."""
        ...

    def unit_sizes(self, profile: BackwardProfile) -> tuple[int, ...]:
        """Returns the sizes of all-reduces to try, ascending."""
        ...

    def pack(self, profile: BackwardProfile, setting: CommConfig) -> Draft:
        """Returns the draft of a plan that a setting makes of a profile."""
        ...


@dataclass(frozen=True)
class Space:
    """Grid of settings with three ascending, nonempty axes.

    Attributes:
      unit_bytes: sizes of a unit.
      num_streams: numbers of concurrent all-reduces.
      num_threads: threads of each all-reduce.
    """

    unit_bytes: tuple[int, ...]
    num_streams: tuple[int, ...]
    num_threads: tuple[int, ...]

    @classmethod
    def for_strategy(
        cls, strategy: SearchableStrategy, profile: BackwardProfile, runs_streams: bool
    ) -> "Space":
        """Returns the settings of a strategy; with one stream only if the engine runs no more."""
        streams = strategy.streams if runs_streams else (1,)
        return cls(strategy.unit_sizes(profile), streams, strategy.allowed_threads)

    @property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """Unit sizes, numbers of streams, numbers of threads."""
        return self.unit_bytes, self.num_streams, self.num_threads

    @property
    def size(self) -> int:
        """Number of settings."""
        return len(self.unit_bytes) * len(self.num_streams) * len(self.num_threads)

    def setting_at(self, indices: tuple[int, ...]) -> CommConfig:
        """Returns the setting with these indices on the axes."""
        return CommConfig(*(axis[i] for axis, i in zip(self.axes, indices, strict=True)))

    def indices_of(self, setting: CommConfig) -> tuple[int, ...]:
        """Returns a setting's indices on the axes, or the nearest ones by ratio."""
        wanted = (setting.unit_bytes, setting.num_streams, setting.num_threads)
        return tuple(
            min(range(len(axis)), key=lambda i: max(axis[i] / value, value / axis[i]))
            for axis, value in zip(self.axes, wanted, strict=True)
        )

    def nearest(self, setting: CommConfig) -> CommConfig:
        """Returns the setting of this space that is nearest to a given one."""
        return self.setting_at(self.indices_of(setting))

    def coarse_to_fine(self) -> list[tuple[int, ...]]:
        """Returns the indices of all settings: first the ends and middles of the axes."""
        rounds = [_bisection_rounds(len(axis)) for axis in self.axes]
        every = itertools.product(*(range(len(axis)) for axis in self.axes))
        return sorted(every, key=lambda p: (sum(r[i] for r, i in zip(rounds, p, strict=True)), p))


def _bisection_rounds(length: int) -> list[int]:
    """Returns the round of bisection in which each index of an axis is reached; 0 for the ends."""
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
