"""Simulation of sequential all-reduces: LIBRA, section III-B, Eqs. 8-15.

LIBRA's time ends with the last all-reduce. Here the optimizer's update of a group may run once the
group is all-reduced, but backward computation has priority. So updates begin after backward,
overlap the remaining all-reduces, contend with them as backward computation does, and end the step.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model import CostModel
from tf_libra.simulation.timeline import GroupSpan, Timeline, TimelineStage
from tf_libra.simulation.whole_groups import WholeGroups
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.effective_bytes import effective_group_bytes
from tf_libra.specs.plan import Plan


def stage_times(
    overlapped: float, exclusive: float, compute_seconds: float, compute_rate: float
) -> tuple[float, float, float]:
    """Returns f_o, f_b and f_c of one all-reduce that overlaps one computation (Eqs. 8-11).

    Args:
      overlapped: p(c, r) + a and waiting; 0 for an empty group.
      exclusive: q(c, r) + a and waiting; 0 for an empty group.
      compute_seconds: b, contention-free.
      compute_rate: alpha1 - alpha2·r without waiting, so that g(b, r) = b / compute_rate.
    """
    computation = compute_seconds / compute_rate
    if overlapped <= computation:
        # Eq. 9 times b: 1 - f_o / g, without dividing by b = 0.
        return overlapped, max(0.0, compute_seconds - overlapped * compute_rate), 0.0
    return computation, 0.0, exclusive * (1 - computation / overlapped)


def simulate_sequential(
    profile: BackwardProfile, plan: Plan, cost: CostModel, whole: WholeGroups | None = None
) -> Timeline:
    """Returns the timeline of a plan whose groups are all on one stream (Eqs. 12-15).

    Args:
      profile: the tensors.
      plan: the plan.
      cost: cost of its groups.
      whole: groups with a cost of their own; None if there are none.
    """
    sizes = np.array(effective_group_bytes(profile, plan))
    threads = np.array([group.num_threads for group in plan.groups])
    overlapped, exclusive, rates = _costs(cost, sizes, threads)
    if whole is not None and whole.groups.any():
        of_whole = _costs(whole.cost, sizes, threads)
        overlapped, exclusive, rates = np.where(
            whole.groups, of_whole, (overlapped, exclusive, rates)
        )
    left_at_start = left_when_ready(profile, plan)

    clock, left = 0.0, float(profile.compute_after[0])  # left: s_b
    wait = max(0.0, left - left_at_start[0])
    stages = [TimelineStage(clock, 0.0, wait, 0.0)]
    clock, left = wait, left_at_start[0]
    updates = updates_of_groups(profile, plan)
    pending = 0.0  # updates of groups that are all-reduced
    spans, ready = [], [clock]
    for index in range(len(plan.groups)):
        before = left
        overlap, left, residual = stage_times(
            float(overlapped[index]), float(exclusive[index]), before + pending, float(rates[index])
        )
        if pending:
            # Backward computation goes before updates, so updates are what remains first.
            left, pending = max(0.0, left - pending), min(left, pending)
            with_backward = min(overlap, before / float(rates[index]))
            overlap, residual = with_backward, residual + overlap - with_backward
        pending += updates[index]
        # Groups whose last tensor is produced while this all-reduce runs.
        while len(ready) < len(plan.groups) and left_at_start[len(ready)] >= left:
            done = before - left_at_start[len(ready)]
            ready.append(clock + max(0.0, done) / float(rates[index]))
        end = clock + overlap + residual
        wait = 0.0
        if index + 1 < len(plan.groups):
            wait = max(0.0, left - left_at_start[index + 1])  # t_b, Eq. 13
            left = min(left, left_at_start[index + 1])  # s_b of the next stage, Eq. 15
        stages.append(TimelineStage(clock, overlap, wait, residual))
        spans.append(GroupSpan(ready[index], clock, end))
        clock = end + wait
        if len(ready) == index + 1:
            ready.append(clock)
    updated = spans[-1].end_seconds + pending if profile.has_updates else 0.0
    return Timeline(tuple(stages), tuple(spans), updated)


def _costs(
    cost: CostModel, sizes: NDArray[Any], threads: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Returns p + a, q + a and the rate of computation for each group."""
    return (
        cost.overlapped_all_reduce(sizes, threads),
        cost.exclusive_all_reduce(sizes, threads),
        cost.mean_compute_rate(sizes, threads),
    )


def updates_of_groups(profile: BackwardProfile, plan: Plan) -> list[float]:
    """Returns contention-free seconds of the updates that may begin after each group."""
    done = profile.updates_before[[0, *(group.ended for group in plan.groups)]]
    return [float(seconds) for seconds in np.diff(done)]


def left_when_ready(profile: BackwardProfile, plan: Plan) -> list[float]:
    """Returns the computation left when each group may start, shape [groups]; the last is 0."""
    if plan.after_backward:
        return [0.0] * len(plan.groups)
    return [float(profile.compute_after[group.stop]) for group in plan.groups]
