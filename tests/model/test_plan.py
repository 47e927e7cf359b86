import dataclasses
import json

import pytest

from tf_libra.model.plan import Plan, TensorGroup
from tf_libra.model.profile import BackwardProfile

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


def test_json_returns_it_unchanged():
    assert Plan.from_json(PLAN.to_json()) == PLAN


def test_for_profile_keeps_dtypes_only_where_all_are_known():
    groups = (TensorGroup(0, 2, 1),)
    known = BackwardProfile.from_arrays([1, 2], [0, 0], dtypes=["half", "float"])
    unknown = BackwardProfile.from_arrays([1, 2], [0, 0])
    assert Plan.for_profile(known, groups, 2, "x").dtypes == ("half", "float")
    assert Plan.for_profile(unknown, groups, 2, "x").dtypes is None


def test_kinds():
    assert PLAN.tensor_kinds == ("merged", "normal", "simultaneous", "normal")


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
        {"after_backward": True},
    ],
)
def test_the_fingerprint_is_of_all_that_runs(change):
    assert dataclasses.replace(PLAN, **change).fingerprint != PLAN.fingerprint


@pytest.mark.parametrize(
    "change", [{"notes": ()}, {"predicted_seconds": None}, {"strategy": "other"}]
)
def test_the_fingerprint_is_of_nothing_else(change):
    assert dataclasses.replace(PLAN, **change).fingerprint == PLAN.fingerprint


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"groups": ()}, "groups must cover 4 tensors"),
        ({"groups": PLAN.groups[:2]}, "they cover 3"),
        ({"groups": PLAN.groups[1:]}, r"groups\[0\].start must be 0"),
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
def test_bad_fields_are_named(change, word):
    with pytest.raises(ValueError, match=word):
        dataclasses.replace(PLAN, **change)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((0, 0, 1), "stop must be from 1"),
        ((-1, 2, 1), "start must be from 0"),
        ((0, 1, 0), "num_threads must be from 1"),
        ((0, 1, 2**31), "num_threads must be from 1 to 2147483647"),
        ((0, 1, 1, 2), "stream must be from 0 to 1"),
    ],
)
def test_bad_groups_are_named(arguments, word):
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
def test_bad_json_is_named(change, word):
    changed = json.dumps(json.loads(PLAN.to_json()) | change).replace("Infinity", "1e400")
    with pytest.raises(ValueError, match=word):
        Plan.from_json(changed)
