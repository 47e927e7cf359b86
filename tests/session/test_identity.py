"""What tells training functions of one name apart."""

from collections.abc import Iterator

import pytest

from tf_libra.session import identity


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
