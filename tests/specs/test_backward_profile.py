import json

import numpy as np
import pytest
import tensorflow as tf

from tf_libra.specs.backward_profile import _ITEM_BYTES, BackwardProfile, GradientTensor, item_bytes

PROFILE = BackwardProfile(
    (
        GradientTensor("dense/bias", 40, 0.25, "float32"),
        GradientTensor("dense/kernel", 4000, 0.0, "float32"),
        GradientTensor("conv/kernel", 0, 0.5),
    )
)


def test_columns_follow_backward_order():
    assert PROFILE.num_bytes.tolist() == [40, 4000, 0]
    assert PROFILE.compute_seconds.tolist() == [0.25, 0.0, 0.5]
    assert PROFILE.bytes_before.tolist() == [0, 40, 4040, 4040]
    assert PROFILE.compute_after.tolist() == [0.75, 0.5, 0.5, 0.0]
    with pytest.raises(ValueError, match="read-only"):
        PROFILE.num_bytes[0] = 1


def test_json_round_trip_is_identical():
    assert BackwardProfile.from_json(PROFILE.to_json()) == PROFILE


def test_updates_are_optional():
    assert not PROFILE.has_updates
    assert "update_seconds" not in PROFILE.to_json()
    profile = BackwardProfile.from_arrays([1, 2], [0, 0], update_seconds=[0, 0.25])
    assert profile.updates_before.tolist() == [0, 0, 0.25]
    assert profile.has_updates
    assert BackwardProfile.from_json(profile.to_json()) == profile
    with pytest.raises(ValueError, match="update_seconds"):
        BackwardProfile.from_arrays([1, 2], [0, 0], update_seconds=[0])
    with pytest.raises(ValueError, match=r"update_seconds.*0"):
        BackwardProfile.from_arrays([1], [0], update_seconds=[-1])


def test_density_scales_the_bytes_that_count():
    profile = BackwardProfile.from_arrays([40, 4000, 0, 7], [0.0] * 4, density=[1, 0.02, 0.5, 0])
    assert profile.effective_bytes.tolist() == [40, 80, 0, 1]
    assert profile.effective_before.tolist() == [0, 40, 120, 120, 121]
    assert profile.num_bytes.tolist() == [40, 4000, 0, 7]
    assert profile.bytes_before[-1] == 4047
    assert BackwardProfile.from_json(profile.to_json()) == profile
    assert profile.with_batch(2).effective_bytes.tolist() == [40, 80, 0, 1]
    assert PROFILE.with_density({"dense/kernel": 0.5}).effective_bytes.tolist() == [40, 2000, 0]
    assert PROFILE.with_density({}) == PROFILE
    assert "density" not in PROFILE.to_json()
    assert PROFILE.effective_before.tolist() == PROFILE.bytes_before.tolist()


@pytest.mark.parametrize(("value", "word"), [(-0.1, "at least 0"), (1.5, "at most 1, got 1.5")])
def test_density_is_a_share(value, word):
    with pytest.raises(ValueError, match=f"density must be {word}"):
        BackwardProfile.from_arrays([1], [0], density=[value])
    with pytest.raises(ValueError, match="density must have one entry per tensor"):
        BackwardProfile.from_arrays([1, 2], [0, 0], density=[value])


def test_from_arrays_accepts_numpy_and_generates_names():
    profile = BackwardProfile.from_arrays(np.array([1, 2]), np.array([0.5, 1.5]))
    assert profile.names == ("gradient_0", "gradient_1")
    assert profile == BackwardProfile.from_arrays([1.0, 2.0], [0.5, 1.5])


@pytest.mark.parametrize(
    ("sizes", "seconds", "names", "word"),
    [
        ([], [], None, "tensors must hold at least one"),
        ([1], [1, 2], None, "compute_seconds must have one entry per tensor"),
        ([1], [1], ["a", "b"], "names must have one entry per tensor"),
        ([1, 1], [1, 1], ["a", "a"], "names must be unique"),
        ([-1], [1], None, "num_bytes must be from 0"),
        ([1.5], [1], None, "num_bytes must be an integer"),
        ([1], [-1e-9], None, "compute_seconds must be at least 0"),
        ([1], [float("nan")], None, "compute_seconds must be a finite number"),
        ([1], [float("inf")], None, "compute_seconds must be a finite number"),
        ([2**62, 2**62], [1, 1], None, "the sum of num_bytes"),
        ([1, 1], [1e308, 1e308], None, "the sum of compute_seconds"),
        ("12", [1, 1], None, "num_bytes must be a list"),
        ([1, 1], [1, 1], "ab", "names must be a list, got 'ab'"),
        ([1, 1], [1, 1], 2, "names must be a list, got 2"),
        (np.array(1), [1], None, "num_bytes must be a list"),
    ],
)
def test_wrong_column_is_named(sizes, seconds, names, word):
    with pytest.raises(ValueError, match=word):
        BackwardProfile.from_arrays(sizes, seconds, names)


@pytest.mark.parametrize(
    ("tensors", "word"),
    [
        (3, "tensors must be a list, got 3"),
        ([PROFILE.tensors[0], "conv"], r"tensors\[1\] must be a GradientTensor, got str"),
    ],
)
def test_wrong_tensor_is_named(tensors, word):
    with pytest.raises(ValueError, match=word):
        BackwardProfile(tensors)
    with pytest.raises(ValueError, match=r"dtypes.*'f'"):
        BackwardProfile.from_arrays([1], [1], dtypes="f")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"format": "tf-libra plan"}, "format must be 'tf-libra profile'"),
        ({"version": 2}, "version of tf-libra profile must be 1, got 2"),
        ({"version": None}, "version of tf-libra profile must be 1"),
        ({"more": 1}, "unknown keys"),
        ({"tensors": 3}, "tensors must be a list"),
        ({"tensors": []}, "tensors must hold at least one"),
        ({"tensors": [3]}, r"tensors\[0\] must be an object"),
        ({"tensors": [{"name": "a", "num_bytes": 1}]}, r"tensors\[0\] lacks .*compute_seconds"),
        (
            {"tensors": [{"name": "a", "num_bytes": -1, "compute_seconds": 0}]},
            r"tensors\[0\]: num_bytes must be from 0",
        ),
        (
            {"tensors": [{"name": 3, "num_bytes": 1, "compute_seconds": 0}]},
            r"tensors\[0\]: name must be a string",
        ),
    ],
)
def test_wrong_json_is_named(change, word):
    with pytest.raises(ValueError, match=word):
        BackwardProfile.from_json(json.dumps(json.loads(PROFILE.to_json()) | change))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ("[" * 100_000, "nested too deep"),
        ('{"a": NaN}', "a must be a finite number, got NaN"),
        ('{"a": 1, "a": 2}', "repeats a key"),
        (" " * (16 * 2**20 + 1), "at most 16777216 characters"),
        (b"{}", "must be a string"),
    ],
)
def test_text_without_profile_is_rejected(text, word):
    with pytest.raises(ValueError, match=word):
        BackwardProfile.from_json(text)


@pytest.mark.parametrize("name", _ITEM_BYTES)
def test_item_bytes_equal_tensorflow(name: str) -> None:
    assert item_bytes(name) == tf.as_dtype(name).size


@pytest.mark.parametrize("name", [None, "string", "resource", "no such"])
def test_item_bytes_of_unknown_dtype_are_none(name: str | None) -> None:
    assert item_bytes(name) is None
