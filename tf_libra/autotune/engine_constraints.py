"""Plans as the engine can run them: of whole tensors and on one stream where it runs no more."""

from collections.abc import Sequence
from dataclasses import replace

from tf_libra import strategies
from tf_libra.cost_model import CostModel
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan, TensorGroup


def most_lanes(strategy: strategies.Strategy, runs_streams: bool) -> int:
    """Returns the threads that streams may use concurrently; 0 if the engine runs no streams."""
    return strategy.num_lanes if runs_streams else 0


def runnable(plan: Plan, profile: BackwardProfile, model: CostModel, num_lanes: int) -> Plan:
    """The plan as it is, or as the engine can run it and the time predicted for that.

    Args:
        plan: of one stream or several.
        profile: to predict by, and `model`.
        model: see `profile`.
        num_lanes: threads that streams may use concurrently; one stream may always run. 0: the
            engine is another library's, which runs one all-reduce of whole tensors at a time.
    """
    groups: Sequence[TensorGroup] = plan.groups
    notes = []
    if plan.cuts_tensors and not num_lanes:
        groups = of_whole_tensors(groups)
        notes.append("no tensor is all-reduced in parts, which the engine cannot")
    if plan.num_streams > 1 and plan.num_lanes > num_lanes:
        groups = [replace(group, stream=0) for group in groups]
        why = f"has {num_lanes} lanes for {plan.num_lanes}" if num_lanes else "runs one at a time"
        notes.append(f"simultaneous all-reduces run one after the other: the engine {why}")
    if not notes:
        return plan
    plan = replace(plan, groups=tuple(groups), notes=(*plan.notes, *notes))
    seconds = simulate(profile, plan, model).backward_seconds
    return replace(plan, predicted_seconds=seconds)


def of_whole_tensors(groups: Sequence[TensorGroup]) -> list[TensorGroup]:
    """Each tensor in the group that has its end."""
    whole = []
    start = 0
    for group in groups:
        if group.ended > start:
            group = replace(group, start=start, stop=group.ended, start_byte=0, stop_byte=None)
            whole.append(group)
            start = group.stop
    return whole
