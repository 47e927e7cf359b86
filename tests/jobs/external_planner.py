"""A planner from outside of the package, with an argument; the script that uses it registers it."""

import dataclasses
from typing import Any, ClassVar

from tf_libra.internal import validation
from tf_libra.planning.arguments import argument
from tf_libra.planning.strategy import Draft, FixedThreads, groups_from_stops


@dataclasses.dataclass(frozen=True, kw_only=True)
class Halves(FixedThreads):
    """Two groups."""

    name: ClassVar[str] = "halves"
    share: float = argument(0.5, "share of the tensors in the first group.")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "share", validation.real("share", self.share, above=0))

    def draft(self, profile: Any, cost: Any) -> Draft:
        count = len(profile.tensors)
        stops = sorted({min(round(count * self.share + 0.25), count), count})
        return Draft(groups_from_stops(stops, [self.num_threads] * len(stops)))
