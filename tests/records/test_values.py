import dataclasses
import json
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tensorboard import examples
from tf_libra import strategies
from tf_libra.model.telemetry import AllReduceRecord
from tf_libra.profiling.backward import StepProduction
from tf_libra.profiling.samples import measured_timeline
from tf_libra.records import values as records
from tf_libra.records.values import (
    PlanRecord,
    Spread,
    StepRecord,
    TimelineRecord,
    kind_of,
    plugin_content,
)
from tf_libra.tuning import Conclusion

RECORD = examples.plan_record()
TIMELINE = examples.timeline_record(RECORD)
ALL = (
    RECORD,
    examples.step_record(RECORD),
    examples.pipeline_record(),
    examples.burst_record(),
    examples.background_record(),
)


@pytest.mark.parametrize("record", ALL, ids=lambda record: record.KIND)
def test_every_record_survives_json(record: records.Record) -> None:
    assert records.KINDS[record.KIND].from_json(record.to_json()) == record


@pytest.mark.parametrize("kind", strategies.BY_NAME.values(), ids=lambda kind: kind.name)
def test_every_strategy_survives_json(kind: type[strategies.Strategy]) -> None:
    record = examples.plan_record(strategy=kind())
    assert PlanRecord.from_json(record.to_json()) == record


def test_a_plan_without_profile_and_model_survives_json() -> None:
    record = PlanRecord("f", 1, "given", RECORD.strategy, (1, 2), Conclusion(RECORD.plan))
    assert PlanRecord.from_json(record.to_json()) == record


def test_steps_of_another_time_that_earlier_versions_kept_are_left_out() -> None:
    document = json.loads(RECORD.to_json())
    assert "baseline_seconds" not in document
    text = json.dumps(document | {"baseline_seconds": [0.061, 0.063]})
    assert PlanRecord.from_json(text) == RECORD


@pytest.mark.parametrize("name", examples.HOSTILE, ids=range(len(examples.HOSTILE)))
def test_names_are_kept_as_they_are(name: str) -> None:
    record = examples.plan_record(function=name, names=(name,))
    again = PlanRecord.from_json(record.to_json())
    assert (again.function, again.plan.tensor_names[0]) == (name, name)
    assert again.tag.startswith(f"{name}/plan/")


def test_series_of_plans_differ_by_function_and_plan() -> None:
    other = examples.plan_record(strategy=strategies.Wfbp())
    assert RECORD.tag == f"train_step/plan/{RECORD.plan.fingerprint[:12]}"
    assert len({RECORD.tag, other.tag, *(record.tag for record in ALL)}) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 0}, "step must be from 1"),
        ({"step": None}, "step must be an integer"),
        ({"origin": "found"}, "origin must be one of made, kept, given"),
        ({"function": 3}, "function must be a string"),
        ({"threads": []}, "threads must hold at least one"),
        ({"threads": [0]}, "threads must be from 1"),
        ({"plan": {}}, "format must be 'tf-libra plan'"),
        ({"profile": 3}, "profile"),
        ({"strategy": {"name": "other"}}, "strategy: name must be one of"),
        ({"strategy": {"name": "libra", "depth": 3}}, "strategy has unknown keys"),
        ({"strategy": {"name": "libra", "max_groups": 0}}, "strategy: max_groups"),
        ({"samples": [{}]}, r"samples\[0\] lacks the keys"),
        ({"samples": [3]}, r"samples\[0\] must be an object"),
        ({"median_error": -1}, "median_error must be at least 0"),
        ({"notes": "text"}, "notes must be a list"),
        ({"extra": 1}, "unknown keys"),
        ({"version": 2}, "version of tf-libra plan record must be 1, got 2"),
        ({"format": "tf-libra step record"}, "format must be 'tf-libra plan record'"),
    ],
)
def test_what_is_wrong_with_a_plan_record_is_named(changes: dict, message: str) -> None:
    document = json.loads(RECORD.to_json()) | changes
    with pytest.raises(ValueError, match=message):
        PlanRecord.from_json(json.dumps(document))


@pytest.mark.parametrize("record", ALL, ids=lambda record: record.KIND)
@pytest.mark.parametrize("damage", ["cut", "missing", "nan", "list", "empty"])
def test_damaged_text_is_a_value_error(record: records.Record, damage: str) -> None:
    text = record.to_json()
    document = json.loads(text)
    del document["function"]
    damaged = {
        "cut": text[: len(text) // 2],
        "missing": json.dumps(document),
        "nan": text.replace('"step": ', '"step": NaN, "old": ', 1),
        "list": f"[{text}]",
        "empty": "",
    }[damage]
    told = "step must be a finite number, got NaN" if damage == "nan" else "record"
    with pytest.raises(ValueError, match=told):
        records.KINDS[record.KIND].from_json(damaged)


def test_a_damaged_span_is_named() -> None:
    document = json.loads(examples.timeline_document(TIMELINE))
    document["spans"][1]["end"]["median"] = "soon"
    with pytest.raises(ValueError, match=r"spans\[1\]: end: median must be a finite number"):
        TimelineRecord.from_json(json.dumps(document))
    document = json.loads(ALL[1].to_json())
    document["all_reduces"][0]["group"] = -2
    with pytest.raises(ValueError, match=r"all_reduces\[0\]: group must be from -1"):
        StepRecord.from_json(json.dumps(document))


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30))
def test_a_spread_is_ordered_and_holds_the_median(values: list[float]) -> None:
    spread = Spread.of(values)
    assert min(values) <= spread.low <= spread.median <= spread.high <= max(values)
    assert spread.median == pytest.approx(statistics.median(values))


def test_a_spread_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        Spread(2.0, 1.0, 3.0)


def test_steps_that_executed_something_else_do_not_count() -> None:
    usual = [examples.traced_step(RECORD, stretch) for stretch in (1.0, 1.5)]
    other = dataclasses.replace(usual[0], all_reduces=usual[0].all_reduces[:-1])
    record = TimelineRecord.of(RECORD.plan, [usual[0], other, usual[1]])
    assert record is not None
    assert record.num_steps == 2
    whole = examples.measured(RECORD).backward_seconds
    assert record.backward.median == pytest.approx(1.25 * whole)
    assert [span.group for span in record.spans] == list(range(len(RECORD.plan.groups)))


def test_an_all_reduce_that_the_pass_left_alone_is_there_too() -> None:
    step = examples.traced_step(RECORD)
    alone = dataclasses.replace(step.all_reduces[0], group=-1, tensors=(0,))
    step = dataclasses.replace(step, all_reduces=(*step.all_reduces, alone))
    record = TimelineRecord.of(RECORD.plan, [StepRecord.from_json(step.to_json())])
    assert record is not None
    groups = sorted(span.group for span in record.spans)
    assert groups == [-1, *range(len(RECORD.plan.groups))]
    assert TimelineRecord.from_json(examples.timeline_document(record)) == record


def test_timeline_is_what_the_steps_did() -> None:
    for stretch in examples.STRETCHES:
        expected = examples.measured(RECORD, stretch)
        found = examples.traced_step(RECORD, stretch).timeline(RECORD.plan)
        assert found is not None
        assert found.backward_seconds == pytest.approx(expected.backward_seconds)
        assert found.compute_seconds == pytest.approx(expected.compute_seconds)
        for ours, theirs in zip(found.groups, expected.groups, strict=True):
            assert dataclasses.astuple(ours) == pytest.approx(dataclasses.astuple(theirs))


def test_steps_that_tell_no_timeline_do_not_count() -> None:
    step = examples.traced_step(RECORD)
    others = [
        dataclasses.replace(step, backward_start_ns=None, produced_ns=()),  # not traced
        dataclasses.replace(step, all_reduces=()),
        dataclasses.replace(step, produced_ns=step.produced_ns[1:]),
    ]
    assert [one.timeline(RECORD.plan) for one in others] == [None] * 3
    assert TimelineRecord.of(RECORD.plan, others) is None
    one = TimelineRecord.of(RECORD.plan, [*others, step])
    assert one is not None and one.num_steps == 1


def test_part_of_a_group_is_ready_with_its_own_last_tensor() -> None:
    names = RECORD.plan.tensor_names
    production = StepProduction(
        names=names,
        produced_ns=np.arange(len(names)) * 1000 + 10**18,
        inferred={},
        backward_start_ns=10**18,
    )
    start, stop = RECORD.plan.groups[0].start, RECORD.plan.groups[0].stop
    parts = [names[start : start + 1], names[start + 1 : stop]]
    reduced = [
        AllReduceRecord(7, i, "plan", 0, 1, 8, *([10**18 + 10**6 * (i + 1)] * 4), part)
        for i, part in enumerate([*parts, names[start:stop]])
    ]
    step = StepRecord.of("f", RECORD.plan, 0, 7, (10**18, 10**18), reduced, production)
    assert [len(one.tensors) for one in step.all_reduces] == [1, stop - start - 1, 0]
    assert step.timeline(RECORD.plan) == measured_timeline(reduced, production)
    assert StepRecord.from_json(step.to_json()) == step


@pytest.mark.parametrize("kind", [*records.KINDS, records.HISTORY_KIND])
def test_plugin_data_says_what_a_summary_is(kind: str) -> None:
    assert kind_of(plugin_content(kind)) == kind


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "Unicode|codec"),
        (plugin_content("plan").replace(b'"version": 1', b'"version": 2'), "version .* must be 1"),
        (plugin_content("plan").replace(b'"plan"', b'"poem"'), "kind must be one of"),
    ],
)
def test_foreign_plugin_data_is_a_value_error(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind_of(content)
