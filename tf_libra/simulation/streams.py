"""Simulation of concurrent streams: LIBRA's stages with ASC-WFBP's Eqs. 9-13, as tasks.

Every all-reduce progresses uniformly, as LIBRA assumes. On its own it takes p + a during
computation and q + a after computation. While another all-reduce runs, transmission takes gamma
times as long: a + gamma·p and a + gamma·q (ASC-WFBP, Eq. 9). The rest of an all-reduce when the
next one arrives is the message of Eq. 12, and its delay is the penalty of Eq. 13. The paper has at
most two concurrent all-reduces; here each further one adds the same delay, (k - 1)·(gamma - 1) for
k. All of them take threads from computation, which keeps the rate alpha1 - alpha2·(r1 + r2 + ...).
Updates are computation that follows all-reduces and waits for the end of backward.
"""

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tf_libra.cost_model import CostModel
from tf_libra.simulation.event_simulator import Task, TaskSpan, simulate_tasks
from tf_libra.simulation.sequential import left_when_ready, updates_of_groups
from tf_libra.simulation.timeline import GroupSpan, Timeline, TimelineStage
from tf_libra.simulation.whole_groups import WholeGroups
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.effective_bytes import effective_group_bytes
from tf_libra.specs.plan import Plan


@dataclass(frozen=True)
class _AllReduce:
    """Seconds of one all-reduce, with (True) and without (False) concurrent computation.

    Attributes:
      num_threads: r.
      alone: seconds without another all-reduce.
      penalty: seconds that each concurrent all-reduce adds.
      slowing: share of the all-reduce without waiting, which slows no computation.
    """

    num_threads: int
    alone: dict[bool, float]
    penalty: dict[bool, float]
    slowing: float

    def rate(self, computing: bool, others: int) -> float:
        """Share of the all-reduce that is done per second."""
        return 1 / (self.alone[computing] + others * self.penalty[computing])


def simulate_streams(
    profile: BackwardProfile, plan: Plan, cost: CostModel, whole: WholeGroups | None = None
) -> Timeline:
    """Returns the timeline of a plan whose groups may be on several streams.

    Args:
      profile: the tensors.
      plan: the plan.
      cost: cost of its groups.
      whole: groups with a cost of their own; None if there are none.

    Raises:
      ValueError: a rate is not positive at the total threads of concurrent all-reduces.
    """
    groups = plan.groups
    count = len(groups)
    costs = [cost if whole is None or not whole.groups[i] else whole.cost for i in range(count)]
    sizes = effective_group_bytes(profile, plan)
    all_reduces = [
        _all_reduce(size, group.num_threads, plan.contention, each)
        for size, group, each in zip(sizes, groups, costs, strict=True)
    ]
    # Tasks 0 to K - 1: the computation until each group is complete. K to 2K - 1: the groups.
    left = [float(profile.compute_after[0]), *left_when_ready(profile, plan)]
    tasks = [
        Task("backward", max(0.0, before - after), after=(index - 1,) if index else ())
        for index, (before, after) in enumerate(itertools.pairwise(left))
    ]
    for index, group in enumerate(groups):
        launched = max(all_reduces[index].alone.values()) > 0
        tasks.append(
            Task(
                "all_reduce",
                1.0 if launched else 0.0,
                resources=(group.stream,),
                after=(index,),
                after_start=(count + index - 1,) if index else (),
            )
        )

    # Tasks 2K to 3K - 1: the updates that may begin after each group, one after the other.
    for index, seconds in enumerate(updates_of_groups(profile, plan)):
        holders = range(_first_holder(plan, index), index + 1)
        tasks.append(
            Task(
                "update",
                seconds,
                resources=("updates",),
                after=(count - 1, *(count + holder for holder in holders)),
                priority=index,
            )
        )

    def rates(running: Collection[int]) -> Mapping[int, float]:
        reducing = [index - count for index in running if count <= index < 2 * count]
        computing = len(reducing) < len(running)
        others = len(reducing) - 1
        rate_by_task = {
            count + index: all_reduces[index].rate(computing, others) for index in reducing
        }
        if computing:
            threads = sum(all_reduces[index].num_threads for index in reducing)
            rate = 1.0
            if reducing:
                slowing = sum(all_reduces[index].slowing for index in reducing) / len(reducing)
                rate = 1 - (1 - float(cost.compute_rate(threads))) * slowing
            rate_by_task.update((i, rate) for i in running if not count <= i < 2 * count)
        return rate_by_task

    spans = simulate_tasks(tasks, rates)
    computed, reduced, updated = spans[:count], spans[count : 2 * count], spans[2 * count :]
    return Timeline(
        _stages(reduced, computed[-1].stop_seconds),
        tuple(
            GroupSpan(produced.stop_seconds, span.start_seconds, span.stop_seconds)
            for produced, span in zip(computed, reduced, strict=True)
        ),
        max(span.stop_seconds for span in updated) if profile.has_updates else 0.0,
    )


def _first_holder(plan: Plan, index: int) -> int:
    """Returns the first group with bytes of a tensor that ends in group `index`."""
    tensor, first = plan.groups[index].start, index
    while plan.groups[first].start == tensor and plan.groups[first].start_byte:
        first -= 1
    return first


def _stages(
    all_reduces: tuple[TaskSpan, ...], computed_seconds: float
) -> tuple[TimelineStage, ...]:
    """Returns the stages between successive starts of all-reduces; computation never pauses."""
    starts = [0.0, *(span.start_seconds for span in all_reduces)]
    moments = sorted({*starts, computed_seconds, *(span.stop_seconds for span in all_reduces)})
    times = [[0.0, 0.0, 0.0] for _ in starts]
    stage, busy_until = 0, 0.0
    for begin, end in itertools.pairwise(moments):
        while stage + 1 < len(starts) and starts[stage + 1] <= begin:
            busy_until = max(busy_until, all_reduces[stage].stop_seconds)
            stage += 1
        kind = (0 if begin < busy_until else 1) if begin < computed_seconds else 2
        times[stage][kind] += end - begin
    return tuple(
        TimelineStage(start, *seconds) for start, seconds in zip(starts, times, strict=True)
    )


def _all_reduce(size: int, threads: int, contention: float, cost: CostModel) -> _AllReduce:
    shared = contention - 1
    overlapped = float(cost.overlapped_all_reduce(size, threads))
    return _AllReduce(
        threads,
        {
            True: overlapped,
            False: float(cost.exclusive_all_reduce(size, threads)),
        },
        {
            True: shared * float(cost.overlapped_seconds(size, threads)),
            False: shared * float(cost.exclusive_seconds(size, threads)),
        },
        1 - cost.waiting_seconds / overlapped if overlapped > 0 else 1.0,
    )
