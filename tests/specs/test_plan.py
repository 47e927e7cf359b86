import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.data_parallel import reference
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import (
    WIRE_DTYPES,
    Plan,
    TensorGroup,
    TensorPart,
    check_whole_tensors,
)

PLAN = Plan(
    groups=(TensorGroup(0, 2, 4), TensorGroup(2, 3, 1, stream=1), TensorGroup(3, 4, 1, stream=1)),
    tensor_names=("a", "b", "c", "d"),
    num_bytes=(8, 16, 0, 4),
    num_workers=2,
    strategy="by hand",
    predicted_seconds=0.125,
    notes=("a note",),
    dtypes=("float32", "float32", "half", "float32"),
    contention=1.5,
)

# The same by the version that knew whole tensors and two streams only.
WRITTEN_BEFORE = """{
    "format": "tf-libra plan",
    "version": 1,
    "fingerprint": "c08d62f3b65d876435202c3316738ed070737aa56ef29e8e4babf16fbf8475bd",
    "groups": [{"start": 0, "stop": 2, "num_threads": 4, "stream": 0},
        {"start": 2, "stop": 3, "num_threads": 1, "stream": 1},
        {"start": 3, "stop": 4, "num_threads": 1, "stream": 1}],
    "tensor_names": ["a", "b", "c", "d"],
    "num_bytes": [8, 16, 0, 4],
    "num_workers": 2,
    "strategy": "by hand",
    "predicted_seconds": 0.125,
    "after_backward": false,
    "notes": ["a note"],
    "dtypes": ["float32", "float32", "half", "float32"],
    "contention": 1.5
}"""

# 8, 16, 0 and 4 bytes: cut within the first, within the second twice, and behind the empty one.
PARTS = dataclasses.replace(
    PLAN,
    groups=(
        TensorGroup(0, 1, 2, stop_byte=4),
        TensorGroup(0, 2, 4, stream=5, start_byte=4, stop_byte=4),
        TensorGroup(1, 2, 1, stream=2, start_byte=4, stop_byte=12),
        TensorGroup(1, 3, 1, start_byte=12),
        TensorGroup(3, 4, 1, stream=2),
    ),
)


@pytest.mark.parametrize("plan", [PLAN, PARTS])
def test_json_round_trip_is_identical(plan):
    assert Plan.from_json(plan.to_json()) == plan


def test_file_of_previous_version_round_trips():
    assert Plan.from_json(WRITTEN_BEFORE) == PLAN
    assert json.loads(PLAN.to_json()) == json.loads(WRITTEN_BEFORE)


def test_group_parts_cover_cut_tensors():
    assert PARTS.group_bytes == (4, 8, 8, 4, 4)
    assert [PARTS.parts(index) for index in range(5)] == [
        (TensorPart(0, 0, 4),),
        (TensorPart(0, 4, 8), TensorPart(1, 0, 4)),
        (TensorPart(1, 4, 12),),
        (TensorPart(1, 12, 16), TensorPart(2, 0, 0)),
        (TensorPart(3, 0, 4),),
    ]
    assert PARTS.cuts_tensors and not PLAN.cuts_tensors
    assert (PARTS.num_streams, PLAN.num_streams) == (3, 2)


@given(st.data())
def test_consecutive_parts_cover_every_byte_once(data):
    profile = data.draw(reference.profiles())
    plan = data.draw(reference.part_plans(profile))
    assert Plan.from_json(plan.to_json()) == plan
    held = [part for index in range(len(plan.groups)) for part in plan.parts(index)]
    for tensor, num_bytes in enumerate(plan.num_bytes):
        parts = [(part.start_byte, part.stop_byte) for part in held if part.tensor == tensor]
        assert parts[0][0] == 0 and parts[-1][1] == num_bytes
        assert all(before[1] == after[0] for before, after in itertools.pairwise(parts))
    assert sum(plan.group_bytes) == sum(plan.num_bytes)
    assert len(plan.tensor_kinds) == len(plan.num_bytes)


def test_for_profile_stores_dtypes_if_all_are_known():
    groups = (TensorGroup(0, 2, 1),)
    known = BackwardProfile.from_arrays([1, 2], [0, 0], dtypes=["half", "float"])
    unknown = BackwardProfile.from_arrays([1, 2], [0, 0])
    assert Plan.for_profile(known, groups, 2, "x").dtypes == ("half", "float")
    assert Plan.for_profile(unknown, groups, 2, "x").dtypes is None


def test_tensor_kinds_follow_groups_and_streams():
    assert PLAN.tensor_kinds == ("merged", "normal", "simultaneous", "normal")
    # The group that ends a tensor counts: "a" ends inside of the second, "b" of the fourth.
    assert PARTS.tensor_kinds == ("merged", "merged", "simultaneous", "simultaneous")


def test_executor_without_parts_rejects_cut_tensors():
    check_whole_tensors(PLAN, "x")
    with pytest.raises(ValueError, match=r"groups\[0\].*'a'"):
        check_whole_tensors(PARTS, "x")


@pytest.mark.parametrize(
    "change",
    [
        {"groups": (TensorGroup(0, 2, 4), TensorGroup(2, 4, 1))},
        {"groups": (TensorGroup(0, 2, 2), *PLAN.groups[1:])},
        {"groups": (*PLAN.groups[:2], TensorGroup(3, 4, 1))},
        {"tensor_names": ("a", "b", "c", "e")},
        {"num_bytes": (8, 16, 0, 5)},
        {"dtypes": None},
        {"num_workers": 3},
        {"groups": PARTS.groups},
        {
            "groups": (
                PARTS.groups[0],
                dataclasses.replace(PARTS.groups[1], stop_byte=None),
                *PLAN.groups[1:],
            )
        },
        {"after_backward": True},
    ],
)
def test_fingerprint_covers_executed_fields(change):
    assert dataclasses.replace(PLAN, **change).fingerprint != PLAN.fingerprint


@pytest.mark.parametrize(
    "change", [{"notes": ()}, {"predicted_seconds": None}, {"strategy": "other"}]
)
def test_fingerprint_excludes_prediction_and_notes(change):
    assert dataclasses.replace(PLAN, **change).fingerprint == PLAN.fingerprint


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"groups": ()}, "groups must cover 4 tensors"),
        ({"groups": PLAN.groups[:2]}, "they cover 3"),
        ({"groups": PLAN.groups[1:]}, r"groups\[0\].start must be 0"),
        (
            {"groups": (TensorGroup(0, 2, 4, stop_byte=4), *PLAN.groups[1:])},
            r"groups\[1\].start must be 1, got 2",
        ),
        (
            {"groups": (TensorGroup(0, 2, 4, stop_byte=4), TensorGroup(1, 4, 1))},
            r"groups\[1\].start_byte must be 4, got 0",
        ),
        (
            {"groups": (TensorGroup(0, 2, 4), TensorGroup(2, 4, 1, start_byte=4))},
            r"groups\[1\].start_byte must be 0, got 4",
        ),
        (
            {"groups": (TensorGroup(0, 2, 4, stop_byte=16), *PLAN.groups[1:])},
            r"groups\[0\].stop_byte must be below 16, .*got 16",
        ),
        (
            {"groups": (TensorGroup(0, 2, 4, stop_byte=6), TensorGroup(1, 4, 1, 0, 6))},
            r"groups\[0\].stop_byte must be a multiple of 4, .*float32, got 6",
        ),
        ({"groups": (TensorGroup(0, 4, 4, stop_byte=2),)}, "multiple of 4"),
        ({"groups": (TensorGroup(0, 4, 4, stop_byte=4),)}, "must be below 4"),
        ({"groups": (TensorGroup(0, 5, 4),)}, "they cover 5"),
        ({"groups": (1,)}, r"groups\[0\] must be a TensorGroup"),
        ({"tensor_names": ("a", "b", "c", "a")}, "tensor_names must be unique"),
        ({"num_bytes": (1, 2)}, "num_bytes must have one entry per tensor name"),
        ({"num_bytes": (1, 2, 3, -4)}, "num_bytes must be from 0"),
        ({"num_workers": 0}, "num_workers must be from 1"),
        ({"predicted_seconds": float("nan")}, "predicted_seconds must be a finite number"),
        ({"predicted_seconds": -1.0}, "predicted_seconds must be at least 0"),
        ({"after_backward": 1}, "after_backward must be true or false"),
        ({"notes": "text"}, "notes must be a list"),
        ({"dtypes": ("half",)}, "dtypes must have one entry per tensor name"),
        ({"contention": 0.5}, "contention must be at least 1"),
    ],
)
def test_wrong_field_is_named(change, word):
    with pytest.raises(ValueError, match=word):
        dataclasses.replace(PLAN, **change)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((0, 0, 1), "stop must be from 1"),
        ((-1, 2, 1), "start must be from 0"),
        ((0, 1, 0), "num_threads must be from 1"),
        ((0, 1, 2**31), "num_threads must be from 1 to 2147483647"),
        ((0, 1, 1, -1), "stream must be from 0"),
        ((0, 1, 1, 0, -4), "start_byte must be from 0"),
        ((0, 2, 1, 0, 0, 0), "stop_byte must be from 1"),
        ((0, 1, 1, 0, 8, 8), "stop_byte must be from 9"),
    ],
)
def test_wrong_group_is_named(arguments, word):
    with pytest.raises(ValueError, match=word):
        TensorGroup(*arguments)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"version": 99}, "version of tf-libra plan must be 1, got 99"),
        ({"fingerprint": "00"}, "fingerprint must be that of the plan's content"),
        ({"num_workers": 4}, "fingerprint must be that of the plan's content"),
        ({"groups": [{"start": 0, "stop": 4}]}, r"groups\[0\] lacks the keys \['num_threads'\]"),
        ({"groups": [{"start": 0, "stop": 4, "num_threads": 0}]}, r"groups\[0\]: num_threads"),
        ({"groups": {}}, "groups must be a list"),
        ({"num_bytes": [1, 2, 3, "4"]}, "num_bytes must be an integer"),
        ({"num_bytes": [1e400]}, "num_bytes must be an integer"),
        ({"code": "import os"}, "unknown keys"),
    ],
)
def test_wrong_json_is_named(change, word):
    changed = json.dumps(json.loads(PLAN.to_json()) | change).replace("Infinity", "1e400")
    with pytest.raises(ValueError, match=word):
        Plan.from_json(changed)


def test_a_lossy_plan_counts_the_bytes_that_travel() -> None:
    lossy = dataclasses.replace(PLAN, wire_dtype="bfloat16")
    assert PLAN.wire_bytes == PLAN.group_bytes == (24, 0, 4)
    assert (PLAN.wire_share, PLAN.loss) == (1.0, None)
    assert lossy.wire_bytes == (12, 0, 2)
    assert lossy.wire_share == 0.5
    assert "bfloat16" in (lossy.loss or "")
    assert dataclasses.replace(lossy, dtypes=None).wire_share == 0.5
    mixed = dataclasses.replace(lossy, dtypes=("float64", "float32", "half", "bfloat16"))
    assert mixed.wire_bytes == (16, 0, 4)


def test_ranks_execute_another_plan_in_each_format() -> None:
    formats = [dataclasses.replace(PLAN, wire_dtype=each) for each in (None, *WIRE_DTYPES)]
    assert len({plan.fingerprint for plan in formats}) == 3
    assert formats[0].fingerprint == json.loads(WRITTEN_BEFORE)["fingerprint"]
    for plan in formats:
        assert Plan.from_json(plan.to_json()) == plan
    assert "wire_dtype" not in formats[0].to_json()
    with pytest.raises(ValueError, match="wire_dtype must be one of bfloat16, float16"):
        dataclasses.replace(PLAN, wire_dtype="float32")


GATHERED = dataclasses.replace(PLAN, gathers=(TensorGroup(1, 4, 8), TensorGroup(0, 1, 2)))


def test_gathers_are_executed_and_stored() -> None:
    assert Plan.from_json(GATHERED.to_json()) == GATHERED
    assert GATHERED.gather_bytes == (20, 8)
    assert (PLAN.num_lanes, GATHERED.num_lanes) == (5, 8)
    other = dataclasses.replace(GATHERED, gathers=(TensorGroup(1, 4, 4), TensorGroup(0, 1, 2)))
    assert len({plan.fingerprint for plan in (PLAN, GATHERED, other)}) == 3
    assert "gathers" not in PLAN.to_json()


@pytest.mark.parametrize(
    ("gathers", "word"),
    [
        ((TensorGroup(0, 1, 2), TensorGroup(1, 4, 8)), r"gathers\[0\].stop must be 4, got 1"),
        ((TensorGroup(2, 4, 2), TensorGroup(0, 1, 2)), r"gathers\[1\].stop must be 2, got 1"),
        ((TensorGroup(2, 4, 2), TensorGroup(1, 2, 2)), "lack the first 1"),
        ((TensorGroup(0, 4, 2, start_byte=4),), r"gathers\[0\] must be of whole tensors"),
        ((TensorGroup(0, 4, 2, stream=1),), r"gathers\[0\] must be of whole tensors on stream 0"),
    ],
)
def test_gathers_are_of_all_tensors_in_forward_order(gathers, word) -> None:
    with pytest.raises(ValueError, match=word):
        dataclasses.replace(PLAN, gathers=gathers)
    with pytest.raises(ValueError, match="wire_dtype must be None with gathers"):
        dataclasses.replace(GATHERED, wire_dtype="float16")
