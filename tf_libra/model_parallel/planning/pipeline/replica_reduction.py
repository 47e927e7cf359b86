"""Tensor fusion for the replicas of a stage, during backward of the last microbatch.

In that computation a stage's gradients become final one by one. Fusing them is LIBRA's problem: a
worker's all-reduces overlap its backward computation. SPP all-reduces after backward computation
(section III-B).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tf_libra.cost_model import ContentionModel
from tf_libra.model_parallel.simulation import PipelineTimeline
from tf_libra.planning.data_parallel.api import make_plan
from tf_libra.planning.data_parallel.libra import Libra
from tf_libra.planning.data_parallel.static_rules import SynEasgd
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile

# Least predicted gain that justifies several all-reduces.
_GAIN = 0.02
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Reduction:
    """Fused gradients of a stage.

    Attributes:
        groups: half-open ranges of gradients in backward order; a single range is one all-reduce
            after backward computation.
        predicted_seconds: seconds from the start of the last backward computation to the end of the
            last all-reduce.
        unsplit_seconds: the same with one all-reduce.
    """

    groups: tuple[tuple[int, int], ...]
    predicted_seconds: float
    unsplit_seconds: float


def plan_reduction(
    num_bytes: Sequence[float],
    compute_seconds: Sequence[float],
    num_replicas: int,
    bytes_per_second: float,
    latency_seconds: float,
) -> Reduction:
    """Fuse gradients by LIBRA's planner if that pays, otherwise all of them.

    Args:
        num_bytes: sizes of gradients in backward order.
        compute_seconds: backward seconds before each gradient, since the previous one.
        num_replicas: number of replicas, at least 2.
        bytes_per_second: least rate between two replicas, as in SPP's Eq. 1.
        latency_seconds: latency of a message between two replicas.

    Raises:
        ValueError: no gradient, or a number out of its range.
    """
    profile = BackwardProfile.from_arrays(num_bytes, compute_seconds)
    rate = (bytes_per_second, 0.0, 0.0)
    # All ranks of a set exchange with all others concurrently: 2 sequential messages.
    cost = ContentionModel(
        num_replicas, latency_seconds, (1.0, 0.0), overlapped=rate, exclusive=rate, hops=2
    )
    plan = make_plan(profile, cost, Libra(threads=(1,)))
    synchronous = make_plan(profile, cost, SynEasgd())
    seconds, total = (
        simulate(profile, schedule, cost).backward_seconds for schedule in (plan, synchronous)
    )
    if seconds > (1 - _GAIN) * total:
        plan, seconds = synchronous, total
    return Reduction(tuple((group.start, group.stop) for group in plan.groups), seconds, total)


def worthwhile(timeline: PipelineTimeline, gains: Mapping[int, float]) -> frozenset[int]:
    """Return the stages whose all-reduces have to end earlier for the shortest iteration.

    Transfers to other stages precede every all-reduce, so earlier all-reduces move nothing else.

    Args:
        timeline: timeline of the iteration with one all-reduce per stage.
        gains: seconds by which a stage's all-reduce could end earlier, by stage.
    """
    ends: dict[int, float] = {}
    other = 0.0
    for block in timeline.blocks:
        gain = gains.get(block.stage, 0.0) if block.kind == "all_reduce" else 0.0
        other = max(other, block.stop_seconds - max(gain, 0.0))
        if gain > 0:
            ends[block.stage] = block.stop_seconds
    return frozenset(stage for stage, end in ends.items() if end > other * (1 + _ROUNDING))
