"""The names that distinguish training functions of one name."""

from collections.abc import Iterator

import pytest

from tf_libra.runtime import identity


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    identity.count_anew()
    yield
    identity.count_anew()


def test_functions_of_one_name_are_counted() -> None:
    names = ["step", "other", "step", "step", "other"]
    found = [identity.of_another(name) for name in names]
    assert found == ["step", "other", "step#1", "step#2", "other#1"]


def test_old_and_new_workers_count_alike_after_a_reset() -> None:
    identity.of_another("step")
    identity.count_anew()
    assert [identity.of_another("step") for _ in range(2)] == ["step", "step#1"]


def test_numbers_of_keras_are_no_part_of_a_models_identity() -> None:
    names = [f"train_step of model {model}" for model in ("sequential_3", "sequential_4")]
    expected = ["train_step of model sequential", "train_step of model sequential#1"]
    assert [identity.of_another(name) for name in names] == expected
    assert identity.of_another("step_3") == "step_3"
