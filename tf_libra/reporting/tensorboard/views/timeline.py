"""View of computation and communication on one time axis."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from tf_libra import strategies
from tf_libra.cost_model import CostModel
from tf_libra.planning import make_plan
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.records.timeline import TimelineRecord
from tf_libra.simulation import Timeline, simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan


def predicted_timeline(record: PlanRecord, strategy: strategies.Strategy | None = None) -> Any:
    """Return the predicted timeline of the record's plan, or of another strategy's plan.

    None without a model.
    """
    profile, cost = record.conclusion.profile, record.conclusion.cost_model
    if profile is None or cost is None:
        return None
    plan = record.plan if strategy is None else make_plan(profile, cost, strategy)
    timeline = (
        record.conclusion.predicted(record.plan)
        if strategy is None
        else simulate(profile, plan, cost)
    )
    if timeline is None:
        return None
    rows = stream_rows(plan)
    return {
        "kind": "predicted",
        "strategy": plan.strategy,
        "num_steps": None,
        "backward": _exactly(timeline.backward_seconds),
        "compute": _exactly(timeline.computation_end_seconds),
        "computation": _computation(profile, plan, timeline, cost),
        "spans": [
            {
                "group": index,
                "num_threads": group.num_threads,
                "num_bytes": plan.group_bytes[index],
                "start": group.start,
                "stop": group.stop,
                "stream": rows[group.stream],
                "from": _exactly(span.start_seconds),
                "to": _exactly(span.end_seconds),
                "ready": _exactly(span.ready_seconds),
            }
            for index, (group, span) in enumerate(zip(plan.groups, timeline.groups, strict=True))
        ],
    }


def measured_timeline(record: PlanRecord, measured: TimelineRecord) -> dict[str, Any]:
    """Return the median and quartiles of the steps under the plan."""
    plan = record.plan
    rows = stream_rows(plan)
    spans = []
    for span in measured.spans:
        known = 0 <= span.group < len(plan.groups)
        group = plan.groups[span.group] if known else None
        spans.append(
            {
                "group": span.group,
                "num_threads": span.num_threads,
                "num_bytes": span.num_bytes,
                "start": None if group is None else group.start,
                "stop": None if group is None else group.stop,
                "stream": 0 if group is None else rows[group.stream],
                "from": dataclasses.asdict(span.start),
                "to": dataclasses.asdict(span.end),
                "ready": dataclasses.asdict(span.ready),
            }
        )
    return {
        "kind": "measured",
        "strategy": plan.strategy,
        "num_steps": measured.num_steps,
        "backward": dataclasses.asdict(measured.backward),
        "compute": dataclasses.asdict(measured.compute),
        # Productions of gradients are measured; slowdowns between them are not.
        "computation": [
            {"from": earlier, "to": later, "beside": None, "rate": None}
            for earlier, later in _pairs(
                [0.0, *sorted(s.ready.median for s in measured.spans), measured.compute.median]
            )
        ],
        "spans": spans,
    }


def stream_rows(plan: Plan) -> dict[int, int]:
    """Return each stream's row of a timeline; stream numbers may have gaps."""
    return {stream: row for row, stream in enumerate(sorted({g.stream for g in plan.groups}))}


def _exactly(seconds: float) -> dict[str, float]:
    return {"low": seconds, "median": seconds, "high": seconds}


def _pairs(edges: Sequence[float]) -> list[tuple[float, float]]:
    return [(a, b) for a, b in itertools.pairwise(edges) if b > a]


def _computation(
    profile: BackwardProfile, plan: Plan, timeline: Timeline, cost: CostModel
) -> list[dict[str, Any]]:
    """Return pieces of backward computation with constant overlap, with their rates."""
    end = timeline.computation_end_seconds
    edges = {0.0, end}
    for span in timeline.groups:
        edges |= {at for at in (span.start_seconds, span.end_seconds) if at < end}
    pieces = []
    for earlier, later in _pairs(sorted(edges)):
        middle = (earlier + later) / 2
        beside = [
            index
            for index, span in enumerate(timeline.groups)
            if span.start_seconds <= middle < span.end_seconds
        ]
        threads = sum(plan.groups[index].num_threads for index in beside)
        rate = float(cost.compute_rate(threads)) if beside else 1.0
        pieces.append({"from": earlier, "to": later, "beside": beside, "rate": rate})
    return pieces
