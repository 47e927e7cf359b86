"""The timeline of any plan."""

from tf_libra.cost_model import CostModel
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.simulation.sequential import simulate_sequential
from tf_libra.simulation.simultaneous import simulate_streams
from tf_libra.simulation.timeline import Timeline


def simulate(profile: BackwardProfile, plan: Plan, cost: CostModel) -> Timeline:
    """Returns the timeline of a plan under a cost model, in continuous time.

    The plan may have been made for another number of workers; the cost model's counts.

    Raises:
      ValueError: the plan is of other tensors, or a rate is not positive at a group's threads.
    """
    sizes = tuple(tensor.num_bytes for tensor in profile.tensors)
    if plan.tensor_names != profile.names or plan.num_bytes != sizes:
        raise ValueError(
            f"plan must be of the profile's {len(sizes)} tensors (same names and num_bytes, in "
            f"the same order), got one of {len(plan.num_bytes)} tensors"
        )
    if plan.num_streams > 1:
        return simulate_streams(profile, plan, cost)
    return simulate_sequential(profile, plan, cost)
