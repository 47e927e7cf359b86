"""Timelines and spreads over several steps."""

import dataclasses
import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reporting.tensorboard import examples
from tf_libra.reporting.records.step import StepRecord
from tf_libra.reporting.records.timeline import Spread, TimelineRecord

RECORD = examples.plan_record()
TIMELINE = examples.timeline_record(RECORD)


def test_malformed_span_is_an_error() -> None:
    document = json.loads(examples.timeline_document(TIMELINE))
    document["spans"][1]["end"]["median"] = "soon"
    with pytest.raises(ValueError, match=r"spans\[1\]:"):
        TimelineRecord.from_json(json.dumps(document))
    document = json.loads(examples.step_record(RECORD).to_json())
    document["all_reduces"][0]["group"] = -2
    with pytest.raises(ValueError, match=r"all_reduces\[0\]:.*-1"):
        StepRecord.from_json(json.dumps(document))


def test_steps_with_other_all_reduces_do_not_count() -> None:
    usual = [examples.traced_step(RECORD, stretch) for stretch in (1.0, 1.5)]
    other = dataclasses.replace(usual[0], all_reduces=usual[0].all_reduces[:-1])
    record = TimelineRecord.from_steps(RECORD.plan, [usual[0], other, usual[1]])
    assert record is not None
    assert record.num_steps == 2
    whole = examples.measured(RECORD).backward_seconds
    assert record.backward.median == pytest.approx(1.25 * whole)
    assert [span.group for span in record.spans] == list(range(len(RECORD.plan.groups)))


def test_unmerged_all_reduce_is_in_the_timeline() -> None:
    step = examples.traced_step(RECORD)
    alone = dataclasses.replace(step.all_reduces[0], group=-1, tensors=(0,))
    step = dataclasses.replace(step, all_reduces=(*step.all_reduces, alone))
    record = TimelineRecord.from_steps(RECORD.plan, [StepRecord.from_json(step.to_json())])
    assert record is not None
    groups = sorted(span.group for span in record.spans)
    assert groups == [-1, *range(len(RECORD.plan.groups))]
    assert TimelineRecord.from_json(examples.timeline_document(record)) == record


def test_untraced_steps_do_not_count() -> None:
    step = examples.traced_step(RECORD)
    others = [
        dataclasses.replace(step, backward_start_ns=None, produced_ns=()),  # not traced
        dataclasses.replace(step, all_reduces=()),
        dataclasses.replace(step, produced_ns=step.produced_ns[1:]),
    ]
    assert [other.timeline(RECORD.plan) for other in others] == [None] * 3
    assert TimelineRecord.from_steps(RECORD.plan, others) is None
    record = TimelineRecord.from_steps(RECORD.plan, [*others, step])
    assert record is not None and record.num_steps == 1


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30))
def test_spread_is_ordered_around_the_median(values: list[float]) -> None:
    spread = Spread.from_values(values)
    assert min(values) <= spread.low <= spread.median <= spread.high <= max(values)
    assert spread.median == pytest.approx(statistics.median(values))


def test_spread_out_of_order_is_an_error() -> None:
    with pytest.raises(ValueError, match="ascend"):
        Spread(2.0, 1.0, 3.0)
