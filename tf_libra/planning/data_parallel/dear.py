"""DeAR: reduce-scatters during backward, gathers during the next forward (arXiv 2302.12445)."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

from tf_libra.cost_model import CostModel
from tf_libra.internal.values import Int32Count, Natural
from tf_libra.planning.arguments import argument
from tf_libra.planning.strategy import Draft, FixedThreads, groups_from_stops, register
from tf_libra.specs.backward_profile import BackwardProfile


def plan_dear(profile: BackwardProfile, strategy: "Dear") -> Draft:
    """Fuse layers in forward order while they fit the buffer together, for both phases.

    As in the authors' public code, a group stays below the buffer's size unless it has one layer
    alone. Adjacent tensors are of one layer if their names are equal up to the last "/".
    """
    starts: list[int] = []  # of the groups, in forward order
    fused = 0
    after = len(profile.tensors)  # the layer's first tensor in forward order is before this one
    for _, names in itertools.groupby(reversed(profile.names), _layer_of):
        first = after - len(tuple(names))
        num_bytes = int(profile.bytes_before[after] - profile.bytes_before[first])
        if fused and fused + num_bytes >= strategy.buffer_bytes:
            starts.append(after)
            fused = 0
        fused += num_bytes
        after = first
    stops = [*reversed(starts), len(profile.tensors)]
    groups = groups_from_stops(stops, [strategy.num_threads] * len(stops))
    return Draft(groups, gathers=groups[::-1])


def _layer_of(name: str) -> str:
    layer, _, _ = name.rpartition("/")
    return layer or name


@register
@dataclass(frozen=True, kw_only=True)
class Dear(FixedThreads):
    """DeAR: groups of one size, reduced during backward and gathered during the forward pass."""

    name: ClassVar[str] = "dear"
    num_threads: Int32Count = argument(
        1, "communication threads r of every reduce-scatter and gather."
    )
    buffer_bytes: Natural = argument(
        25 * 2**20, "THRESHOLD, the size of a group; 25 MiB in the authors' public code."
    )

    @property
    def gathers_weights(self) -> bool:
        """True: training shards updates, and gathers weights under the next forward pass."""
        return True

    def draft(self, profile: BackwardProfile, cost: CostModel) -> Draft:
        """Plan groups of the buffer's size."""
        return plan_dear(profile, self)
