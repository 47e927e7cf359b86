"""Simulation of gathers under the next forward pass (DeAR, arXiv 2302.12445).

All weights are updated when the forward pass begins, and each rank has the parts that it owns.
Gathers run one after the other. A layer computes when its weights have been gathered and the layers
before it have computed. So a gather overlaps the computation of the layers whose weights are there:

  s >= P·rate:  it takes P, and computation of P·rate is done
  else:         it overlaps s/rate of computation, then takes Q·(1 - s/(P·rate)) alone

with s, the contention-free computation that is ready when it begins, P = p + a, Q = q + a and
rate = alpha1 - alpha2·r, as in backward computation (LIBRA, Eqs. 8-11). Then its layers are
ready, too. The first gather overlaps nothing, and the last layers compute alone.
"""

import bisect
import itertools
from dataclasses import replace

import numpy as np

from tf_libra.cost_model import CostModel
from tf_libra.simulation.timeline import GroupSpan, Timeline
from tf_libra.simulation.whole_groups import WholeGroups
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan


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
