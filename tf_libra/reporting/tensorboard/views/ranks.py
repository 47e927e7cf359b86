"""View of one step of all ranks, on one time axis."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tf_libra.reporting.records.clock_sync import clock_offsets
from tf_libra.reporting.records.exchanges import shared_exchanges
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.records.step import AllReduceSpan, StepRecord
from tf_libra.reporting.tensorboard.views.timeline import stream_rows


def ranks_view(
    record: PlanRecord, steps: Sequence[StepRecord], wanted: int | None = None
) -> dict[str, Any] | None:
    """Return all ranks' all-reduces in one step; None without a recorded step.

    Times are seconds since the start of rank 0's backward, or since the first all-reduce was ready
    if that start is unknown, by the clock of the lowest rank. Each all-reduce has its readiness
    (`ready`), begin (`from`), the last rank's first byte (`exchange`) and end (`to`).

    Args:
      record: the plan.
      steps: steps under the plan, of any ranks.
      wanted: number of the step; None: the last one of most ranks, preferably traced.
    """
    if not steps:
        return None
    by_rank: dict[int, list[StepRecord]] = {}
    for step in steps:
        by_rank.setdefault(step.rank, []).append(step)
    offsets = clock_offsets({rank: shared_exchanges(own) for rank, own in by_rank.items()})
    counts = Counter(number for own in by_rank.values() for number in {one.step for one in own})
    most = max(counts.values())
    complete = sorted(number for number, count in counts.items() if count == most)
    traced = {one.step for one in steps if one.backward_start_ns is not None}
    number = wanted if wanted in counts else _last([n for n in complete if n in traced] or complete)
    chosen = sorted((one for one in steps if one.step == number), key=lambda one: one.rank)

    def shift(rank: int) -> int:
        offset = offsets[rank]
        return 0 if offset is None else offset.offset_ns

    zero = min(
        (one.backward_start_ns - shift(one.rank) for one in chosen if one.backward_start_ns),
        default=min(
            (span.enqueued_ns - shift(one.rank) for one in chosen for span in one.all_reduces),
            default=chosen[0].started_ns - shift(chosen[0].rank),
        ),
    )
    ranks = [_rank(one, zero + shift(one.rank), record) for one in chosen]
    for rank in ranks:
        offset = offsets[rank["rank"]]
        rank["clock_error_seconds"] = None if offset is None else offset.error_ns * 1e-9
    return {
        "step": number,
        "steps": complete,
        "ranks": ranks,
        "end": max((span["to"] for rank in ranks for span in rank["spans"]), default=0.0),
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
                "group": one.group,
                "num_threads": one.num_threads,
                "num_bytes": one.num_bytes,
                "stream": _row(one, record, rows),
                "ready": seconds(one.enqueued_ns),
                "from": seconds(one.started_ns),
                "exchange": seconds(min(max(one.first_byte_ns, one.started_ns), one.finished_ns)),
                "to": seconds(one.finished_ns),
            }
            for one in sorted(step.all_reduces, key=lambda one: one.started_ns)
        ],
    }


def _row(one: AllReduceSpan, record: PlanRecord, rows: dict[int, int]) -> int:
    if not 0 <= one.group < len(record.plan.groups):
        return 0
    return rows[record.plan.groups[one.group].stream]


def _skews(ranks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each group's last ready rank, and the spread of readiness over ranks."""
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
