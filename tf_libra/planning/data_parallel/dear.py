"""DeAR: reduce-scatters during backward, gathers during the next forward (arXiv 2302.12445)."""

from dataclasses import dataclass
from typing import ClassVar

from tf_libra.cost_model import CostModel
from tf_libra.internal.values import Natural
from tf_libra.planning.arguments import argument
from tf_libra.planning.strategy import Draft, FixedThreads, groups_from_stops, register
from tf_libra.specs.backward_profile import BackwardProfile


def plan_dear(profile: BackwardProfile, strategy: "Dear") -> Draft:
    """Fuse tensors in forward order while they fit the buffer together, for both phases.

    As in the authors' public code, a group stays below the buffer's size unless it has one tensor
    alone. That code fuses whole layers, a plan single tensors.
    """
    starts: list[int] = []  # of the groups, in forward order
    fused = 0
    for index in reversed(range(len(profile.tensors))):
        num_bytes = profile.tensors[index].num_bytes
        if fused and fused + num_bytes >= strategy.buffer_bytes:
            starts.append(index + 1)
            fused = 0
        fused += num_bytes
    stops = [*reversed(starts), len(profile.tensors)]
    groups = groups_from_stops(stops, [strategy.num_threads] * len(stops))
    return Draft(groups, gathers=groups[::-1])


@register
@dataclass(frozen=True, kw_only=True)
class Dear(FixedThreads):
    """DeAR: groups of one size, reduced during backward and gathered during the forward pass."""

    name: ClassVar[str] = "dear"
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
