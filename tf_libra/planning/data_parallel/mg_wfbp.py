"""MG-WFBP: tensor fusion at a fixed number of threads, blind to contention."""

from dataclasses import dataclass
from typing import ClassVar

from tf_libra.cost_model import ContentionModel
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning.draft import Draft, groups_from_stops
from tf_libra.planning.strategy import FixedThreads, register


def plan_mg_wfbp(profile: BackwardProfile, cost: ContentionModel, strategy: "MgWfbp") -> Draft:
    """Merges by MG-WFBP's rule, as ASC-WFBP's paper gives it in Eq. 5."""
    stops = merge_stops(profile, cost, strategy.num_threads)
    return Draft(groups_from_stops(stops, [strategy.num_threads] * len(stops)))


def merge_stops(profile: BackwardProfile, cost: ContentionModel, num_threads: int) -> list[int]:
    """Returns where MG-WFBP's groups end.

    In backward order, a group takes in the next tensor if that is produced less than a startup
    overhead after the group's all-reduce could start: tau_b + t_b < tau_c + a. An all-reduce takes
    a + q(c, r), and computation no longer for being overlapped.
    """
    produced = profile.compute_seconds.cumsum().tolist()
    startup = cost.exclusive_startup_seconds
    stops: list[int] = []
    channel_free = 0.0
    group_start = 0
    for index in range(len(produced)):
        starts = max(channel_free, produced[index])
        last = index + 1 == len(produced)
        if last or produced[index + 1] >= starts + startup:
            size = int(profile.bytes_before[index + 1] - profile.bytes_before[group_start])
            channel_free = starts + float(cost.exclusive_all_reduce(size, num_threads))
            stops.append(index + 1)
            group_start = index + 1
    return stops


@register
@dataclass(frozen=True, kw_only=True)
class MgWfbp(FixedThreads):
    """MG-WFBP: the next tensor is merged when it is produced within a startup overhead."""

    name: ClassVar[str] = "mg-wfbp"

    def draft(self, profile: BackwardProfile, cost: ContentionModel) -> Draft:
        """By MG-WFBP's merge rule."""
        return plan_mg_wfbp(profile, cost, self)
