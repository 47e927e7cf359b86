"""The environment fingerprint by which a cached plan is found, in addition to its model."""

import json

import pytest
import tensorflow as tf

from tf_libra.runtime import fingerprint


def test_are_those_of_this_process_and_stay_so() -> None:
    found = fingerprint.of("lanes", "float32 (8, 4)", 2)
    assert found == fingerprint.of("lanes", "float32 (8, 4)", 2)
    assert found["tensorflow"] == tf.__version__
    assert found["tf_libra"].endswith(f"+tf{tf.__version__}")
    assert found["local_size"] == "2"
    assert int(found["intra_op_threads"]) >= 0 and int(found["inter_op_threads"]) >= 0


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("engine", ("horovod", "float32 (8, 4)", 2)),
        ("inputs", ("lanes", "float32 (16, 4)", 2)),
        ("local_size", ("lanes", "float32 (8, 4)", 1)),
    ],
)
def test_differ_in_what_is_different_and_nothing_else(
    name: str, other: tuple[str, str, int]
) -> None:
    one, two = fingerprint.of("lanes", "float32 (8, 4)", 2), fingerprint.of(*other)
    assert one.keys() == two.keys()
    assert [key for key in one if one[key] != two[key]] == [name]


def test_are_kept_as_text() -> None:
    found = fingerprint.of("lanes", "", 1)
    assert json.loads(json.dumps(found)) == found
    assert all(isinstance(value, str) for value in found.values())
