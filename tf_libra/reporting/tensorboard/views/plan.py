"""View of a plan and its groups."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tf_libra.autotune.trial_comparison import explain_strategy_change
from tf_libra.cost_model import CostModel
from tf_libra.planning.explain import (
    GroupExplanation,
    bottleneck,
    explain_group,
    explain_summary,
    group_costs,
)
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.tensorboard.views.strategies import compared_strategies, scale_out
from tf_libra.reporting.tensorboard.views.trials import comparison_view, race_view, search_view
from tf_libra.simulation import Timeline
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan


def plan_view(record: PlanRecord, hosts: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the groups of a plan with their predictions, and the ranks' host names.

    `bottleneck` is the group that costs backward the most time, by contention and by exposed
    communication.
    """
    plan, timeline = record.plan, record.conclusion.predicted(record.plan)
    view: dict[str, Any] = {
        "function": record.function,
        "step": record.step,
        "origin": record.origin,
        "strategy": plan.strategy,
        "requested": record.strategy.name,
        "fingerprint": plan.fingerprint,
        "num_workers": plan.num_workers,
        "num_tensors": len(plan.tensor_names),
        "num_bytes": sum(plan.num_bytes),
        "threads": list(record.threads),
        "after_backward": plan.after_backward,
        "predicted_seconds": plan.predicted_seconds,
        "notes": list(
            dict.fromkeys(filter(None, (plan.loss, *plan.notes, *record.conclusion.notes)))
        ),
        "versions": list(record.versions),
        "hosts": list(hosts),
        "strategies": compared_strategies(record),
        "scale_out": scale_out(record),
        "tensor_names": list(plan.tensor_names),
        "race": race_view(record.conclusion.race),
        "search": search_view(record.conclusion.search),
        "comparison": comparison_view(record.conclusion.race),
        "another": explain_strategy_change(
            record.strategy.name, plan.strategy, record.conclusion.race, record.conclusion.notes
        )
        if record.conclusion.profile is not None
        else None,
        "summary": None,
        "compute_seconds": None,
        "bottleneck": None,
        "groups": [
            {
                "group": index,
                "start": group.start,
                "stop": group.stop,
                "start_byte": group.start_byte,
                "stop_byte": group.stop_byte,
                "num_threads": group.num_threads,
                "stream": group.stream,
                "num_bytes": plan.group_bytes[index],
                # The node name of the pass; see passes/all_reduce_grouping.cc.
                "node": f"tf_libra/{plan.short_id}/group_{index}",
            }
            for index, group in enumerate(plan.groups)
        ],
    }
    if record.conclusion.profile is not None:
        view["compute_seconds"] = float(record.conclusion.profile.compute_after[0])
    if timeline is None:
        return view
    profile, model = record.conclusion.whole_profile, record.conclusion.cost_model
    assert profile is not None and model is not None
    view["summary"] = explain_summary(profile, plan, model)
    view["predicted_seconds"] = timeline.backward_seconds
    costs = _costs(profile, plan, timeline, model)
    for row, cost in zip(view["groups"], costs, strict=True):
        row.update(cost)
    view["totals"] = {
        "backward_seconds": timeline.backward_seconds,
        "step_seconds": timeline.step_seconds,
        "computation_end_seconds": timeline.computation_end_seconds,
        "slowed_seconds": timeline.computation_end_seconds - view["compute_seconds"],
        "residual_communication_seconds": sum(
            stage.residual_communication_seconds for stage in timeline.stages
        ),
    }
    view["bottleneck"] = bottleneck(group_costs(profile, plan, timeline, model))
    return view


def _costs(
    profile: BackwardProfile, plan: Plan, timeline: Timeline, cost: CostModel
) -> list[dict[str, Any]]:
    """Returns each group's span and its cost to backward, overlapped and exposed."""
    rows = []
    found = group_costs(profile, plan, timeline, cost)
    for loss, span, stage in zip(found, timeline.groups, timeline.stages[1:], strict=True):
        rows.append(
            {
                "ready_seconds": span.ready_seconds,
                "start_seconds": span.start_seconds,
                "end_seconds": span.end_seconds,
                "waited_seconds": span.start_seconds - span.ready_seconds,
                "overlap_seconds": stage.overlap_seconds,
                "residual_compute_seconds": stage.residual_compute_seconds,
                "residual_communication_seconds": stage.residual_communication_seconds,
                "slowed_seconds": loss.slowed_seconds,
                "lost_seconds": loss.seconds,
            }
        )
    return rows


def group_view(record: PlanRecord, index: int) -> dict[str, Any]:
    """Returns a group's tensors and explanation; `caveat` if the model is not trusted.

    Raises:
      ValueError: the plan has no such group.
    """
    plan = record.plan
    if not 0 <= index < len(plan.groups):
        raise ValueError(f"group must be from 0 to {len(plan.groups) - 1}, got {index}")
    group = plan.groups[index]
    profile = record.conclusion.whole_profile
    seconds = None
    if profile is not None:
        order = {tensor.name: tensor.compute_seconds for tensor in profile.tensors}
        seconds = [order[name] for name in plan.tensor_names[group.start : group.stop]]
    view: dict[str, Any] = {
        "group": index,
        "start": group.start,
        "num_threads": group.num_threads,
        "names": list(plan.tensor_names[group.start : group.stop]),
        "num_bytes": [part.num_bytes for part in plan.parts(index)],
        "compute_seconds": seconds,
        "why": None,
        "caveat": record.conclusion.evidence.caveat,
    }
    if record.conclusion.predicted(record.plan) is not None:
        model, evidence = record.conclusion.cost_model, record.conclusion.evidence
        assert profile is not None and model is not None
        view["why"] = _why(explain_group(profile, plan, model, index, evidence))
    return view


def _why(explanation: GroupExplanation) -> dict[str, Any]:
    return {
        "starts": explanation.starts,
        "merged": explanation.merged,
        "threads": explanation.threads,
        "alternatives": [
            dataclasses.asdict(alternative) for alternative in explanation.alternatives
        ],
    }
