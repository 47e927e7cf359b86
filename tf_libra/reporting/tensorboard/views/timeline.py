"""View of computation and communication on one time axis."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tf_libra.cost_model import CostModel
from tf_libra.planning import data_parallel as strategies
from tf_libra.planning import make_plan
from tf_libra.reporting.records.clock_sync import clock_offsets, shared_exchanges
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.records.step import AllReduceSpan, StepRecord
from tf_libra.reporting.records.timeline import TimelineRecord
from tf_libra.simulation import Timeline, simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.effective_bytes import effective_group_bytes
from tf_libra.specs.plan import Plan


def predicted_timeline(record: PlanRecord, strategy: strategies.Strategy | None = None) -> Any:
    """Returns the predicted timeline of the record's plan, or of another strategy's plan.

    None without a model.
    """
    profile, cost = record.conclusion.whole_profile, record.conclusion.cost_model
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
        "next_forward": _next_forward(plan, timeline),
    }


def _next_forward(plan: Plan, timeline: Timeline) -> dict[str, Any] | None:
    """Returns the gathers under the next forward pass; None without gathers."""
    if not plan.gathers:
        return None
    return {
        "boundary": timeline.boundary_seconds,
        "delay": timeline.forward_delay_seconds,
        "end": max(layers.end_seconds for layers in timeline.forward),
        "gathers": [
            {
                "num_threads": gather.num_threads,
                "num_bytes": num_bytes,
                "start": gather.start,
                "stop": gather.stop,
                "from": span.start_seconds,
                "to": span.end_seconds,
                "layers_from": layers.start_seconds,
                "layers_to": layers.end_seconds,
            }
            for gather, num_bytes, span, layers in zip(
                plan.gathers, plan.gather_bytes, timeline.gathers, timeline.forward, strict=True
            )
        ],
    }


def measured_timeline(record: PlanRecord, measured: TimelineRecord) -> dict[str, Any]:
    """Returns the median and quartiles of the steps under the plan."""
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
            {"from": earlier, "to": later, "overlapped_groups": None, "rate": None}
            for earlier, later in _pairs(
                [0.0, *sorted(s.ready.median for s in measured.spans), measured.compute.median]
            )
        ],
        "spans": spans,
        "next_forward": None,
    }


def stream_rows(plan: Plan) -> dict[int, int]:
    """Returns each stream's row of a timeline; stream numbers may have gaps."""
    return {stream: row for row, stream in enumerate(sorted({g.stream for g in plan.groups}))}


def _exactly(seconds: float) -> dict[str, float]:
    return {"low": seconds, "median": seconds, "high": seconds}


def _pairs(edges: Sequence[float]) -> list[tuple[float, float]]:
    return [(a, b) for a, b in itertools.pairwise(edges) if b > a]


def _computation(
    profile: BackwardProfile, plan: Plan, timeline: Timeline, cost: CostModel
) -> list[dict[str, Any]]:
    """Returns pieces of backward computation with constant overlap, with their rates."""
    end, sizes = timeline.computation_end_seconds, effective_group_bytes(profile, plan)
    edges = {0.0, end}
    for span in timeline.groups:
        edges |= {at for at in (span.start_seconds, span.end_seconds) if at < end}
    pieces = []
    for earlier, later in _pairs(sorted(edges)):
        middle = (earlier + later) / 2
        groups = [
            index
            for index, span in enumerate(timeline.groups)
            if span.start_seconds <= middle < span.end_seconds
        ]
        threads = sum(plan.groups[index].num_threads for index in groups)
        num_bytes = sum(sizes[index] for index in groups)
        rate = float(cost.mean_compute_rate(num_bytes, threads)) if groups else 1.0
        pieces.append({"from": earlier, "to": later, "overlapped_groups": groups, "rate": rate})
    return pieces


def ranks_view(
    record: PlanRecord, steps: Sequence[StepRecord], selected: int | None = None
) -> dict[str, Any] | None:
    """Returns all ranks' all-reduces and gathers in one step; None without a recorded step.

    Times are seconds since the start of rank 0's backward, or since the first all-reduce was ready
    if that start is unknown, by the clock of the lowest rank. Each all-reduce has its readiness
    (`ready`), begin (`from`), the last rank's first byte (`exchange`) and end (`to`).

    Args:
      record: the plan.
      steps: steps under the plan, of any ranks.
      selected: number of the step; None: the last one of most ranks, preferably traced.
    """
    if not steps:
        return None
    by_rank: dict[int, list[StepRecord]] = {}
    for step in steps:
        by_rank.setdefault(step.rank, []).append(step)
    offsets = clock_offsets({rank: shared_exchanges(own) for rank, own in by_rank.items()})
    counts = Counter(number for own in by_rank.values() for number in {step.step for step in own})
    most = max(counts.values())
    complete = sorted(number for number, count in counts.items() if count == most)
    traced = {step.step for step in steps if step.backward_start_ns is not None}
    number = (
        selected if selected in counts else _last([n for n in complete if n in traced] or complete)
    )
    chosen = sorted((step for step in steps if step.step == number), key=lambda step: step.rank)

    def shift(rank: int) -> int:
        offset = offsets[rank]
        return 0 if offset is None else offset.offset_ns

    zero = min(
        (step.backward_start_ns - shift(step.rank) for step in chosen if step.backward_start_ns),
        default=min(
            (span.enqueued_ns - shift(step.rank) for step in chosen for span in step.all_reduces),
            default=chosen[0].started_ns - shift(chosen[0].rank),
        ),
    )
    ranks = [_rank(step, zero + shift(step.rank), record) for step in chosen]
    for rank in ranks:
        offset = offsets[rank["rank"]]
        rank["clock_error_seconds"] = None if offset is None else offset.error_ns * 1e-9
    return {
        "step": number,
        "steps": complete,
        "ranks": ranks,
        "end": max(
            (span["to"] for rank in ranks for span in (*rank["spans"], *rank["gathers"])),
            default=0.0,
        ),
        "groups": _skews(ranks),
    }


def _last(numbers: Sequence[int]) -> int:
    return numbers[-1]


def _rank(step: StepRecord, zero_ns: int, record: PlanRecord) -> dict[str, Any]:
    def seconds(at_ns: int) -> float:
        return (at_ns - zero_ns) * 1e-9

    rows = stream_rows(record.plan)
    computation = None
    if step.backward_start_ns is not None and step.produced_ns:
        computation = {
            "from": seconds(step.backward_start_ns),
            "to": seconds(max(step.produced_ns)),
        }
    return {
        "rank": step.rank,
        "host": step.host,
        "computation": computation,
        "spans": [
            {
                "group": span.group,
                "num_threads": span.num_threads,
                "num_bytes": span.num_bytes,
                "stream": _row(span, record, rows),
                "ready": seconds(span.enqueued_ns),
                "from": seconds(span.started_ns),
                "exchange": seconds(
                    min(max(span.first_byte_ns, span.started_ns), span.finished_ns)
                ),
                "to": seconds(span.finished_ns),
            }
            for span in sorted(step.all_reduces, key=lambda span: span.started_ns)
        ],
        "gathers": [
            {
                "group": gather.group,
                "num_threads": gather.num_threads,
                "num_bytes": gather.num_bytes,
                "num_tensors": len(gather.tensors),
                "from": seconds(gather.started_ns),
                "to": seconds(gather.finished_ns),
            }
            for gather in step.gathers
        ],
    }


def _row(span: AllReduceSpan, record: PlanRecord, rows: dict[int, int]) -> int:
    if not 0 <= span.group < len(record.plan.groups):
        return 0
    return rows[record.plan.groups[span.group].stream]


def _skews(ranks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns each group's last ready rank, and the spread of readiness over ranks."""
    found = []
    groups = sorted({span["group"] for rank in ranks for span in rank["spans"]})
    for group in groups:
        spans = [
            (rank["rank"], span)
            for rank in ranks
            for span in rank["spans"]
            if span["group"] == group
        ]
        last, late = max(spans, key=lambda pair: pair[1]["ready"])
        _, early = min(spans, key=lambda pair: pair[1]["ready"])
        found.append(
            {
                "group": group,
                "last_rank": last,
                "skew_seconds": late["ready"] - early["ready"],
                "waited_seconds": max(span["exchange"] - span["from"] for _, span in spans),
                "exchange_seconds": max(span["to"] - span["exchange"] for _, span in spans),
            }
        )
    return found
