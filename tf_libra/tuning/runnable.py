"""Plans as the engine can run them: whole tensors, one all-reduce at a time."""

from dataclasses import replace

from tf_libra.cost_model import CostModel
from tf_libra.model.plan import Plan, check_whole_tensors
from tf_libra.model.profile import BackwardProfile
from tf_libra.simulation import simulate


def one_stream(plan: Plan, profile: BackwardProfile, model: CostModel) -> Plan:
    """The plan with its groups one after the other, and the time that this is predicted to take.

    Raises:
        ValueError: the plan cuts tensors.
    """
    check_whole_tensors(plan, "the engine")
    if all(group.stream == 0 for group in plan.groups):
        return plan
    groups = tuple(replace(group, stream=0) for group in plan.groups)
    note = "simultaneous all-reduces run one after the other: the engine runs one at a time"
    plan = replace(plan, groups=groups, notes=(*plan.notes, note))
    seconds = simulate(profile, plan, model).backward_seconds
    return replace(plan, predicted_seconds=seconds)
