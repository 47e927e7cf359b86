"""Plans as the engine can run them: whole tensors, and one stream where it runs no more."""

from dataclasses import replace

from tf_libra import strategies
from tf_libra.cost_model import CostModel
from tf_libra.model.plan import Plan, check_whole_tensors
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning.strategy import threads_at_once
from tf_libra.simulation import simulate


def most_lanes(strategy: strategies.Strategy, runs_streams: bool) -> int:
    """Threads that its plans may have at once; 0 where the engine runs one all-reduce at a time."""
    return threads_at_once(strategy) if runs_streams else 0


def runnable(plan: Plan, profile: BackwardProfile, model: CostModel, num_lanes: int) -> Plan:
    """The plan as it is, or with its groups one after the other and the time predicted for that.

    Args:
        plan: of one stream or several.
        profile: to predict by, and `model`.
        model: see `profile`.
        num_lanes: threads that streams may have at once; one stream may always run.

    Raises:
        ValueError: the plan cuts tensors.
    """
    check_whole_tensors(plan, "the engine")
    if plan.num_streams == 1 or plan.num_lanes <= num_lanes:
        return plan
    groups = tuple(replace(group, stream=0) for group in plan.groups)
    why = f"has {num_lanes} lanes for {plan.num_lanes}" if num_lanes else "runs one at a time"
    note = f"simultaneous all-reduces run one after the other: the engine {why}"
    plan = replace(plan, groups=groups, notes=(*plan.notes, note))
    seconds = simulate(profile, plan, model).backward_seconds
    return replace(plan, predicted_seconds=seconds)
