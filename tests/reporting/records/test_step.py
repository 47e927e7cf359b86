"""Records of steps, and their timelines along backward computation."""

import dataclasses

import numpy as np
import pytest

from tests.reporting.tensorboard import examples
from tf_libra.profiling.gradient_timing import StepProduction
from tf_libra.profiling.overlap_samples import measured_timeline
from tf_libra.reporting.records.step import StepRecord
from tf_libra.specs.plan import TensorGroup
from tf_libra.specs.telemetry import AllReduceRecord

RECORD = examples.plan_record()


def test_timeline_has_the_times_of_the_step() -> None:
    for stretch in examples.STRETCHES:
        expected = examples.measured(RECORD, stretch)
        found = examples.traced_step(RECORD, stretch).timeline(RECORD.plan)
        assert found is not None
        assert found.backward_seconds == pytest.approx(expected.backward_seconds)
        assert found.compute_seconds == pytest.approx(expected.compute_seconds)
        for ours, theirs in zip(found.groups, expected.groups, strict=True):
            assert dataclasses.astuple(ours) == pytest.approx(dataclasses.astuple(theirs))


def test_partial_group_is_ready_with_its_last_tensor() -> None:
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
    step = StepRecord.from_execution("f", RECORD.plan, 0, 7, (10**18, 10**18), reduced, production)
    assert [len(reduce.tensors) for reduce in step.all_reduces] == [1, stop - start - 1, 0]
    assert step.timeline(RECORD.plan) == measured_timeline(reduced, production)
    assert StepRecord.from_json(step.to_json()) == step


def test_gathers_are_of_the_tensors_whose_weights_they_have() -> None:
    plan, last = RECORD.plan, len(RECORD.plan.tensor_names)
    gathers = (TensorGroup(1, last, 2), TensorGroup(0, 1, 1))
    names = plan.tensor_names
    records = [
        AllReduceRecord(7, i, "plan", -1, 2, 8, *([10**18] * 4), own, is_gather=True)
        for i, own in enumerate(
            [(f"{names[2]} in a_gather", f"{names[1]} by 12 in a_gather"), (f"{names[0]} in b",)]
        )
    ]
    for planned, groups in ((dataclasses.replace(plan, gathers=gathers), [0, 1]), (plan, [-1, -1])):
        step = StepRecord.from_execution(
            "f", planned, 0, 7, (10**18, 10**18), (), None, gathers=records
        )
        assert [span.group for span in step.gathers] == groups
        assert [span.tensors for span in step.gathers] == [(1, 2), (0,)]
        assert StepRecord.from_json(step.to_json()) == step
