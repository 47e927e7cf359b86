"""Planners by a fixed rule without a cost model: SynEASGD, WFBP, Horovod's fusion."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tf_libra.cost_model import CostModel
from tf_libra.internal.values import Natural, Positive
from tf_libra.planning.arguments import argument
from tf_libra.planning.strategy import Draft, FixedThreads, groups_from_stops, register
from tf_libra.specs.backward_profile import BackwardProfile

_ROUNDING = 1e-9


def plan_syneasgd(profile: BackwardProfile, strategy: "SynEasgd") -> Draft:
    """Plan one all-reduce after backward computation."""
    return Draft(groups_from_stops([len(profile.tensors)], [strategy.num_threads]))


def plan_wfbp(profile: BackwardProfile, strategy: "Wfbp") -> Draft:
    """Plan one all-reduce per tensor."""
    stops = range(1, len(profile.tensors) + 1)
    return Draft(groups_from_stops(stops, [strategy.num_threads] * len(stops)))


def plan_horovod_fusion(profile: BackwardProfile, strategy: "HorovodFusion") -> Draft:
    """Fuse, in order, the tensors of one cycle while they fit the buffer together.

    Cycles begin with backward, on computation without contention. A tensor larger than the buffer
    is all-reduced alone. In a real run, the tensors of a cycle vary and a group waits for the
    cycle's end; a plan starts a group when it is ready.
    """
    produced = np.cumsum(profile.compute_seconds)
    cycles = np.ceil(produced / strategy.cycle_seconds * (1 - _ROUNDING))
    stops: list[int] = []
    fused = 0
    for index, num_bytes in enumerate(profile.num_bytes.tolist()):
        same_cycle = index > 0 and cycles[index] == cycles[index - 1]
        if index > 0 and not (same_cycle and fused + num_bytes <= strategy.buffer_bytes):
            stops.append(index)
            fused = 0
        fused += num_bytes
    stops.append(len(profile.tensors))
    return Draft(groups_from_stops(stops, [strategy.num_threads] * len(stops)))


@register
@dataclass(frozen=True, kw_only=True)
class SynEasgd(FixedThreads):
    """SynEASGD: one all-reduce of all gradients after backward computation."""

    name: ClassVar[str] = "syneasgd"

    def draft(self, profile: BackwardProfile, cost: CostModel) -> Draft:
        """Plan one group."""
        return plan_syneasgd(profile, self)


@register
@dataclass(frozen=True, kw_only=True)
class Wfbp(FixedThreads):
    """WFBP: one all-reduce per tensor, when it is produced, in order."""

    name: ClassVar[str] = "wfbp"

    def draft(self, profile: BackwardProfile, cost: CostModel) -> Draft:
        """Plan one group per tensor."""
        return plan_wfbp(profile, self)


@register
@dataclass(frozen=True, kw_only=True)
class HorovodFusion(FixedThreads):
    """Horovod's fusion: tensors of one cycle are fused, up to the buffer size."""

    name: ClassVar[str] = "horovod-fusion"
    cycle_seconds: Positive = argument(
        1e-3, "HOROVOD_CYCLE_TIME; 1 ms in Horovod 0.28, 5 ms in 0.20."
    )
    buffer_bytes: Natural = argument(
        128 * 2**20,
        "HOROVOD_FUSION_THRESHOLD; 128 MiB in Horovod 0.28, 64 MiB in 0.20.",
    )

    def draft(self, profile: BackwardProfile, cost: CostModel) -> Draft:
        """Plan as Horovod fuses."""
        return plan_horovod_fusion(profile, self)
