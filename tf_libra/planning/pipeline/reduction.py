"""How the replicas of a stage all-reduce while it computes backward for the last microbatch.

A stage's gradients are final one by one during that computation: for this while a stage is what
LIBRA plans for, a worker whose all-reduces overlap its backward computation. SPP itself begins with
all of them when it has ended (section III-B).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tf_libra.cost_model import ContentionModel
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning.data_parallel.fixed import SynEasgd
from tf_libra.planning.data_parallel.libra import Libra
from tf_libra.planning.data_parallel.planner import make_plan
from tf_libra.simulation import PipelineTimeline, simulate

# What is predicted has to be shorter by this share, to be worth more than one all-reduce.
_GAIN = 0.02
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Reduction:
    """How gradients are fused.

    Attributes:
        groups: half-open ranges of gradients, in the order in which they are produced; one range of
            all of them: one all-reduce, once backward computation has ended.
        predicted_seconds: from the start of the last backward computation until all are reduced.
        at_once_seconds: the same with one all-reduce.
    """

    groups: tuple[tuple[int, int], ...]
    predicted_seconds: float
    at_once_seconds: float


def plan_reduction(
    num_bytes: Sequence[float],
    compute_seconds: Sequence[float],
    num_replicas: int,
    bytes_per_second: float,
    latency_seconds: float,
) -> Reduction:
    """Fuses gradients by LIBRA's planner where that pays, else all of them.

    Args:
        num_bytes: sizes of gradients, in the order in which they are produced.
        compute_seconds: of backward computation from one to the next, the first from its start.
        num_replicas: at least 2.
        bytes_per_second: the least rate between two of them, which SPP's Eq. 1 counts with.
        latency_seconds: of a message between two of them.

    Raises:
        ValueError: there is no gradient, or a number is out of its range.
    """
    profile = BackwardProfile.from_arrays(num_bytes, compute_seconds)
    rate = (bytes_per_second, 0.0, 0.0)
    # All ranks of a set exchange with all others at once: 2 messages, one after the other.
    cost = ContentionModel(
        num_replicas, latency_seconds, (1.0, 0.0), overlapped=rate, exclusive=rate, hops=2
    )
    plan = make_plan(profile, cost, Libra(threads=(1,)))
    at_once = make_plan(profile, cost, SynEasgd())
    seconds, total = (simulate(profile, one, cost).backward_seconds for one in (plan, at_once))
    if seconds > (1 - _GAIN) * total:
        plan, seconds = at_once, total
    return Reduction(tuple((one.start, one.stop) for one in plan.groups), seconds, total)


def worthwhile(timeline: PipelineTimeline, gains: Mapping[int, float]) -> frozenset[int]:
    """The stages whose all-reduces have to end earlier for the iteration to be as short as it can.

    What others wait for is sent before any all-reduce ends, so nothing else moves.

    Args:
        timeline: of the iteration, each stage's gradients all-reduced at once.
        gains: by stage, by how many seconds its all-reduce could end earlier.
    """
    ends: dict[int, float] = {}
    other = 0.0
    for block in timeline.blocks:
        gain = gains.get(block.stage, 0.0) if block.kind == "all_reduce" else 0.0
        other = max(other, block.stop_seconds - max(gain, 0.0))
        if gain > 0:
            ends[block.stage] = block.stop_seconds
    return frozenset(stage for stage, end in ends.items() if end > other * (1 + _ROUNDING))
