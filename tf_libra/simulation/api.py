"""Simulation of any data-parallel plan."""

import bisect
import itertools
import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from tf_libra.cost_model import CostModel
from tf_libra.internal import validation
from tf_libra.simulation.sequential import simulate_sequential
from tf_libra.simulation.streams import simulate_streams
from tf_libra.simulation.timeline import GroupSpan, Timeline
from tf_libra.simulation.whole_groups import WholeGroups
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan


def simulate(
    profile: BackwardProfile, plan: Plan, cost: CostModel, whole: Collection[str] = ()
) -> Timeline:
    """Returns the timeline of a plan under a cost model, in continuous time.

    The number of workers is the cost model's, even if the plan was made for another one. Under a
    plan with a `wire_dtype` the bytes that travel count; a mixture of dtypes counts by its average.
    With gathers, each phase takes half of an all-reduce's bytes and hops, and each rank updates its
    part alone.

    Args:
      profile: the tensors.
      plan: the plan.
      cost: the cost model.
      whole: names of tensors whose updates every rank makes, also if the plan has gathers. Their
        groups are all-reduced then, and the weights of these groups are not gathered.

    Raises:
      ValueError: the plan has other tensors, a rate is not positive at a group's threads, or the
        sum of times is not finite.
    """
    validation.instance("profile", profile, BackwardProfile)
    validation.instance("plan", plan, Plan)
    validation.instance("cost", cost, CostModel)
    sizes = tuple(tensor.num_bytes for tensor in profile.tensors)
    if plan.tensor_names != profile.names or plan.num_bytes != sizes:
        raise ValueError(
            f"plan must be of the profile's {len(sizes)} tensors (same names and num_bytes, in "
            f"the same order), got one of {len(plan.num_bytes)} tensors"
        )
    if plan.wire_dtype is not None:
        cost = cost.on_wire(plan.wire_share, profile.bytes_per_effective)
    simulated = simulate_streams if plan.num_streams > 1 else simulate_sequential
    if plan.gathers:
        groups = WholeGroups.of_plan(plan, cost, whole)
        profile, cost = groups.owned_updates(profile), cost.one_phase()
        timeline = add_gathers(simulated(profile, plan, cost, groups), profile, plan, cost, groups)
    else:
        timeline = simulated(profile, plan, cost)
    if not math.isfinite(timeline.step_seconds):
        raise ValueError(
            "the seconds of profile and the times of cost must add up to a finite number, got"
            f" {timeline.step_seconds}"
        )
    return timeline


def owned_problem(profile: BackwardProfile, cost: CostModel) -> tuple[BackwardProfile, CostModel]:
    """Returns profile and cost model of ranks that reduce, update and gather the owned parts."""
    return profile.with_owned_updates(cost.num_workers), cost.one_phase()


def add_gathers(
    timeline: Timeline,
    profile: BackwardProfile,
    plan: Plan,
    cost: CostModel,
    whole: WholeGroups,
) -> Timeline:
    """Returns the timeline with the plan's gathers and the forward pass behind it.

    Args:
      timeline: reduce-scatters, backward computation and updates.
      profile: the tensors.
      plan: a plan with gathers.
      cost: cost of all-gathers.
      whole: groups whose weights are not gathered.
    """
    sizes = whole.gathered_bytes(plan)
    threads = np.array([gather.num_threads for gather in plan.gathers])
    overlapped = cost.overlapped_all_reduce(sizes, threads).tolist()
    exclusive = cost.exclusive_all_reduce(sizes, threads).tolist()
    rates = cost.mean_compute_rate(sizes, threads).tolist()
    layers = [float(profile.forward_seconds[g.start : g.stop].sum()) for g in plan.gathers]
    begin = clock = timeline.step_seconds
    ready = 0.0  # s
    # Moments, and the computation that is done by then.
    moments, done = [clock], [0.0]
    spans: list[GroupSpan] = []

    def advance(seconds: float, computed: float) -> None:
        moments.append(moments[-1] + seconds)
        done.append(done[-1] + computed)

    for index, rate in enumerate(rates):
        used = overlapped[index] * rate
        share = min(1.0, ready / used) if used > 0 else 1.0
        advance(share * overlapped[index], share * used)
        advance((1 - share) * exclusive[index], 0.0)
        spans.append(GroupSpan(begin, clock, moments[-1]))
        clock = moments[-1]
        ready = max(0.0, ready - share * used) + layers[index]
    advance(ready, ready)
    targets = itertools.accumulate(layers)
    ends = [_first_moment(min(target, done[-1]), moments, done) for target in targets]
    ends = [max(end, span.end_seconds) for end, span in zip(ends, spans, strict=True)]
    before = [begin, *ends[:-1]]
    forward = tuple(
        GroupSpan(span.end_seconds, max(span.end_seconds, free), end)
        for span, free, end in zip(spans, before, ends, strict=True)
    )
    delay = max(0.0, moments[-1] - begin - sum(layers))
    return replace(timeline, gathers=tuple(spans), forward=forward, forward_delay_seconds=delay)


def _first_moment(target: float, moments: list[float], done: list[float]) -> float:
    """Returns the first moment at which this much computation is done."""
    after = bisect.bisect_left(done, target)
    if after == 0 or done[after] == done[after - 1]:
        return moments[after]
    share = (target - done[after - 1]) / (done[after] - done[after - 1])
    return moments[after - 1] + share * (moments[after] - moments[after - 1])
