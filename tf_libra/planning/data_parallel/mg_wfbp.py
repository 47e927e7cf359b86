"""MG-WFBP: tensor fusion at a fixed number of threads, without a contention model."""

from dataclasses import dataclass
from typing import ClassVar

from tf_libra.cost_model import CostModel
from tf_libra.internal.values import Natural
from tf_libra.planning.arguments import argument
from tf_libra.planning.strategy import Draft, FixedThreads, groups_from_stops, register
from tf_libra.specs.backward_profile import BackwardProfile, item_bytes

MIN_ELEMENTS = 8192
_ITEM_BYTES = 4  # of an unknown dtype


def plan_mg_wfbp(profile: BackwardProfile, cost: CostModel, strategy: "MgWfbp") -> Draft:
    """Merge tensors by MG-WFBP's rule (ASC-WFBP, Eq. 5), and small groups."""
    stops = merge_stops(profile, cost, strategy.num_threads, strategy.min_elements)
    return Draft(groups_from_stops(stops, [strategy.num_threads] * len(stops)))


def merge_stops(
    profile: BackwardProfile, cost: CostModel, num_threads: int, min_elements: int = 0
) -> list[int]:
    """Returns the ends of MG-WFBP's groups.

    In backward order, a group merges the next tensor if that is produced less than a startup
    overhead after the group's all-reduce could start: tau_b + t_b < tau_c + a. An all-reduce takes
    a + q(c, r), and overlap does not slow computation. A group of fewer than `min_elements`
    elements merges the next tensor in any case, as in the authors' public code; elements of an
    unknown dtype have 4 bytes.
    """
    produced = profile.compute_seconds.cumsum().tolist()
    startup = cost.exclusive_constant_seconds
    stops: list[int] = []
    channel_free = 0.0
    group_start = 0
    elements = 0
    for index, tensor in enumerate(profile.tensors):
        elements += tensor.num_bytes // (item_bytes(tensor.dtype) or _ITEM_BYTES)
        starts = max(channel_free, produced[index])
        last = index + 1 == len(produced)
        if last or (elements >= min_elements and produced[index + 1] >= starts + startup):
            size = int(profile.effective_before[index + 1] - profile.effective_before[group_start])
            channel_free = starts + float(cost.exclusive_all_reduce(size, num_threads))
            stops.append(index + 1)
            group_start = index + 1
            elements = 0
    return stops


@register
@dataclass(frozen=True, kw_only=True)
class MgWfbp(FixedThreads):
    """MG-WFBP: the next tensor is merged when it is produced within a startup overhead."""

    name: ClassVar[str] = "mg-wfbp"
    min_elements: Natural = argument(
        MIN_ELEMENTS,
        "a group with fewer elements merges the next tensor in any case; 8192 in the authors' "
        "public code. 0: by the startup overhead alone, as in the paper.",
    )

    def draft(self, profile: BackwardProfile, cost: CostModel) -> Draft:
        """Plan by MG-WFBP's merge rule."""
        return plan_mg_wfbp(profile, cost, self)
