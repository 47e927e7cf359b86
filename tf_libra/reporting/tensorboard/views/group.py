"""View of one group of a plan."""

import dataclasses
from typing import Any

from tf_libra.planning.explain import GroupExplanation, explain_group
from tf_libra.reporting.records.plan import PlanRecord


def group_view(record: PlanRecord, index: int) -> dict[str, Any]:
    """Return a group's tensors and explanation; `caveat` if the model is not trusted.

    Raises:
      ValueError: the plan has no such group.
    """
    plan = record.plan
    if not 0 <= index < len(plan.groups):
        raise ValueError(f"group must be from 0 to {len(plan.groups) - 1}, got {index}")
    group = plan.groups[index]
    profile = record.conclusion.profile
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
        "alternatives": [dataclasses.asdict(one) for one in explanation.alternatives],
    }
