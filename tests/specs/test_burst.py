import dataclasses
import json

import numpy as np
import pytest

import tf_libra
from tf_libra.specs.burst import BurstPlan, BurstSpan

PLAN = BurstPlan(
    layer_names=("a", "b"),
    device_counts=(1, 2, 4),
    num_devices=(4, 1),
    first_devices=(0, 2),
    lanes=(0, 1),
    amplification=(1.5, float("inf")),
    iteration_seconds=3.0,
    device_seconds=9.5,
    spans=(
        BurstSpan("compute", 0, None, 0, 0.0, 2.0),
        BurstSpan("transition", 1, 0, 1, 2.0, 2.5, (0,)),
        BurstSpan("compute", 1, None, 1, 2.5, 3.0, (1,)),
    ),
    strategy="by hand",
    max_amplification=2.0,
    profile_fingerprint="0",
    notes=("a note",),
)


def test_json_round_trip_is_identical():
    assert BurstPlan.from_json(PLAN.to_json()) == PLAN
    assert tf_libra.BurstPlan is BurstPlan


def test_counts_are_stored_as_integers():
    """Layers are indices, whatever they were given as."""
    spans = tuple(
        BurstSpan(
            span.kind,
            float(span.layer),
            None if span.source is None else np.int64(span.source),
            np.int64(span.lane),
            np.float32(span.start_seconds),
            span.stop_seconds,
            span.after,
        )
        for span in PLAN.spans
    )
    plan = dataclasses.replace(PLAN, spans=spans)
    assert plan == PLAN
    assert plan.to_json() == PLAN.to_json()
    assert plan.transition_seconds == PLAN.transition_seconds


def test_gaps_are_idle_intervals_of_devices():
    assert PLAN.gaps == (((2.0, 3.0),), ((2.0, 3.0),), (), ((2.0, 3.0),))
    assert PLAN.idle_seconds == (1.0, 1.0, 0, 1.0)
    assert PLAN.transition_seconds == (0.0, 0.5)


@pytest.mark.parametrize(
    "change",
    [
        {"layer_names": ("a", "c")},
        {"num_devices": (2, 1)},
        {"first_devices": (0, 3)},
        {"lanes": (0, 0)},
        {"spans": PLAN.spans[:2]},
    ],
)
def test_fingerprint_covers_executed_fields(change):
    assert dataclasses.replace(PLAN, **change).fingerprint != PLAN.fingerprint


@pytest.mark.parametrize(
    "change",
    [{"notes": ()}, {"iteration_seconds": 4.0}, {"strategy": "x"}, {"max_amplification": 9}],
)
def test_fingerprint_excludes_times_and_notes(change):
    assert dataclasses.replace(PLAN, **change).fingerprint == PLAN.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_devices": (4,)}, "num_devices must have one entry per layer: 2, got 1"),
        ({"num_devices": (4, 3)}, r"num_devices must be of \(1, 2, 4\), got 3"),
        ({"first_devices": (1, 0)}, "first_devices must leave 4 of 4 devices, got 1"),
        ({"device_counts": (2, 4)}, "device_counts must begin with 1"),
        ({"amplification": (1.5, -1)}, "amplification must be at least 0"),
        ({"iteration_seconds": float("nan")}, "iteration_seconds must be a finite number"),
        (
            {"iteration_seconds": 2.75},
            r"spans\[2\].stop_seconds must be at most iteration_seconds, 2.75, got 3.0",
        ),
        ({"max_amplification": 0.5}, "max_amplification must be at least 1"),
        ({"layer_names": ("a", "a")}, "layer_names must be unique"),
        (
            {"spans": (BurstSpan("compute", 0, None, 0, 0, 0, (0,)),)},
            r"spans\[0\].after must be of the spans before it, got \(0,\)",
        ),
        ({"spans": (1,)}, r"spans\[0\] must be a BurstSpan"),
        ({"spans": (BurstSpan("compute", 2, None, 0, 0, 0),)}, r"spans\[0\] must be of the 2"),
    ],
)
def test_wrong_field_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PLAN, **change)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        (("wait", 0, None, 0, 0, 1), "kind must be one of"),
        (("compute", 0, 1, 0, 0, 1), "source must be a layer for a transition alone"),
        (("transition", 0, None, 0, 0, 1), "source must be a layer for a transition alone"),
        (("compute", 0, None, 0, 2, 1), "stop_seconds must be at least 2"),
        (("compute", -1, None, 0, 0, 1), "layer must be from 0"),
        (("compute", 0, None, 0, 0, 1, (-1,)), "after must be from 0"),
    ],
)
def test_wrong_span_is_named(span, message):
    with pytest.raises(ValueError, match=message):
        BurstSpan(*span)


def test_wrong_document_is_named():
    value = json.loads(PLAN.to_json())
    for change, message in [
        ({"fingerprint": "0"}, "fingerprint must be that of the plan's content"),
        ({"version": 2}, "version of tf-libra burst plan must be 1, got 2"),
        ({"format": "tf-libra plan"}, "format must be 'tf-libra burst plan'"),
        ({"more": 1}, "unknown keys"),
        ({"spans": [{"kind": "compute"}]}, r"spans\[0\] lacks the keys"),
    ]:
        with pytest.raises(ValueError, match=message):
            BurstPlan.from_json(json.dumps(value | change))
