"""The properties of a strategy's tuning before it begins."""

import pytest

from tests.autotune.machine import Machine, drive
from tf_libra import strategies
from tf_libra.autotune import asks_for_a_start


@pytest.mark.parametrize("name", ["libra", "aiacc", "auto", "mg-wfbp", "wfbp", "libra-m"])
def test_a_start_is_looked_for_where_tuning_asks_for_it(name: str) -> None:
    asked: list[float | None] = []
    drive(Machine(), name, start=asked.append)
    assert bool(asked) is asks_for_a_start(strategies.resolve(name))
