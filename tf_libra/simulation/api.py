"""Simulation of any data-parallel plan."""

import math
from collections.abc import Collection

from tf_libra.cost_model import CostModel
from tf_libra.internal import validation
from tf_libra.simulation.gathers import add_gathers
from tf_libra.simulation.sequential import simulate_sequential
from tf_libra.simulation.streams import simulate_streams
from tf_libra.simulation.timeline import Timeline
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
