"""The timeline of plans with two all-reduces at once: LIBRA's stages with ASC-WFBP's Eqs. 9-13.

Every all-reduce progresses uniformly, as LIBRA assumes. Alone it takes p + a beside computation
and q + a after it; while another runs, transmission takes gamma times as long: a + gamma·p and
a + gamma·q (ASC-WFBP, Eq. 9). What is left of an all-reduce when the next arrives is then the
message of Eq. 12, and what it pays is the penalty of Eq. 13. Both take threads from computation,
which keeps the rate alpha1 - alpha2·(r1 + r2).
"""

import math
from dataclasses import dataclass

from tf_libra.cost_model import ContentionModel
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.simulation.sequential import left_when_ready
from tf_libra.simulation.timeline import GroupSpan, Stage, Timeline


@dataclass(frozen=True)
class _AllReduce:
    """Seconds of one all-reduce, by (computation runs, another all-reduce runs)."""

    num_threads: int
    seconds: dict[tuple[bool, bool], float]


def simulate_streams(profile: BackwardProfile, plan: Plan, cost: ContentionModel) -> Timeline:
    """Returns the timeline of a plan whose groups may be on two streams.

    Time advances from event to event: an all-reduce ends, a group's last gradient is produced, or
    backward computation ends. Between two events all rates are constant.

    Raises:
      ValueError: a rate is not positive at the threads of the all-reduces that run at once.
    """
    groups = plan.groups
    all_reduces = [_all_reduce(profile, plan, cost, index) for index in range(len(groups))]
    left_at_start = left_when_ready(profile, plan)
    left = float(profile.compute_after[0])
    clock = 0.0
    ready = [math.nan] * len(groups)
    starts, ends = [math.nan] * len(groups), [math.nan] * len(groups)
    running: dict[int, float] = {}  # group -> fraction that is left
    times = [[0.0, 0.0, 0.0]]  # per stage: overlapped, computation alone, communication alone
    launched = produced = 0
    while True:
        while produced < len(groups) and left_at_start[produced] >= left:
            ready[produced] = clock
            produced += 1
        while launched < produced and not any(
            groups[other].stream == groups[launched].stream for other in running
        ):
            starts[launched] = clock
            times.append([0.0, 0.0, 0.0])
            if max(all_reduces[launched].seconds.values()) > 0:
                running[launched] = 1.0
            else:
                ends[launched] = clock
            launched += 1
        if not running and left == 0:
            break
        # Rates until the next event.
        threads = sum(all_reduces[index].num_threads for index in running)
        compute_rate = float(cost.compute_rate(threads)) if running else 1.0
        durations = {
            index: all_reduces[index].seconds[left > 0, len(running) > 1] for index in running
        }
        next_left = left_at_start[produced] if produced < len(groups) else 0.0
        until_computed = (left - next_left) / compute_rate if left > 0 else math.inf
        until_ended = min((running[i] * durations[i] for i in running), default=math.inf)
        elapsed = min(until_computed, until_ended)
        kind = (0 if running else 1) if left > 0 else 2
        times[-1][kind] += elapsed
        clock += elapsed
        for index in list(running):
            if running[index] * durations[index] <= elapsed:
                ends[index] = clock
                del running[index]
            else:
                running[index] -= elapsed / durations[index]
        if left > 0:
            # The event's own value is taken as it is: subtraction would miss it by rounding.
            left = next_left if until_computed <= elapsed else left - elapsed * compute_rate
    stages = []
    for index, stage_times in enumerate(times):
        stages.append(Stage(starts[index - 1] if index else 0.0, *stage_times))
    return Timeline(tuple(stages), tuple(map(GroupSpan, ready, starts, ends)))


def _all_reduce(
    profile: BackwardProfile, plan: Plan, cost: ContentionModel, index: int
) -> _AllReduce:
    group = plan.groups[index]
    size = int(profile.bytes_before[group.stop] - profile.bytes_before[group.start])
    overlapped = float(cost.overlapped_all_reduce(size, group.num_threads))
    exclusive = float(cost.exclusive_all_reduce(size, group.num_threads))
    shared = plan.contention - 1
    return _AllReduce(
        group.num_threads,
        {
            (True, False): overlapped,
            (True, True): overlapped
            + shared * float(cost.overlapped_seconds(size, group.num_threads)),
            (False, False): exclusive,
            (False, True): exclusive
            + shared * float(cost.exclusive_seconds(size, group.num_threads)),
        },
    )
