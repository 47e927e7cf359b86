"""The environment fingerprint by which a cached plan is found, in addition to its model."""

import json
from collections.abc import Iterator

import pytest
import tensorflow as tf

from tf_libra.internal.process_state import STATE
from tf_libra.runtime import fingerprint


def test_environment_fingerprint_describes_this_process() -> None:
    found = fingerprint.environment_fingerprint("lanes", "float32 (8, 4)", 2)
    assert found == fingerprint.environment_fingerprint("lanes", "float32 (8, 4)", 2)
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
def test_environment_fingerprints_differ_in_one_field(
    name: str, other: tuple[str, str, int]
) -> None:
    first, second = (
        fingerprint.environment_fingerprint("lanes", "float32 (8, 4)", 2),
        fingerprint.environment_fingerprint(*other),
    )
    assert first.keys() == second.keys()
    assert [key for key in first if first[key] != second[key]] == [name]


def test_environment_fingerprint_is_json_text() -> None:
    found = fingerprint.environment_fingerprint("lanes", "", 1)
    assert json.loads(json.dumps(found)) == found
    assert all(isinstance(value, str) for value in found.values())


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    STATE.reset()
    yield
    STATE.reset()


def test_functions_of_the_same_name_are_numbered() -> None:
    names = ["step", "other", "step", "step", "other"]
    found = [fingerprint.function_identity(name) for name in names]
    assert found == ["step", "other", "step#1", "step#2", "other#1"]


def test_old_and_new_workers_count_alike_after_a_reset() -> None:
    fingerprint.function_identity("step")
    STATE.reset()
    assert [fingerprint.function_identity("step") for _ in range(2)] == ["step", "step#1"]


def test_numbers_of_keras_are_no_part_of_a_models_identity() -> None:
    names = [f"train_step of model {model}" for model in ("sequential_3", "sequential_4")]
    expected = ["train_step of model sequential", "train_step of model sequential#1"]
    assert [fingerprint.function_identity(name) for name in names] == expected
    assert fingerprint.function_identity("step_3") == "step_3"
