"""Planners that follow a fixed rule and look at no cost: SynEASGD, WFBP, Horovod's fusion."""

import numpy as np

from tf_libra.model.profile import BackwardProfile
from tf_libra.planning.data_parallel.draft import Draft, groups_from_stops
from tf_libra.strategies import HorovodFusion, SynEasgd, Wfbp

_ROUNDING = 1e-9


def plan_syneasgd(profile: BackwardProfile, strategy: SynEasgd) -> Draft:
    """One all-reduce after backward computation."""
    return Draft(groups_from_stops([len(profile.tensors)], [strategy.num_threads]))


def plan_wfbp(profile: BackwardProfile, strategy: Wfbp) -> Draft:
    """One all-reduce per tensor."""
    stops = range(1, len(profile.tensors) + 1)
    return Draft(groups_from_stops(stops, [strategy.num_threads] * len(stops)))


def plan_horovod_fusion(profile: BackwardProfile, strategy: HorovodFusion) -> Draft:
    """Fuses, in order, the tensors of one cycle while they fit the buffer together.

    Cycles are counted from the start of backward, on computation without contention. A tensor
    larger than the buffer is all-reduced alone. In a real run, which tensors share a cycle depends
    on the moment and a group waits for the cycle's end; a plan starts it when it is ready.
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
