"""Median and quartiles."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.reporting.records.spread import Spread


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30))
def test_a_spread_is_ordered_and_holds_the_median(values: list[float]) -> None:
    spread = Spread.of(values)
    assert min(values) <= spread.low <= spread.median <= spread.high <= max(values)
    assert spread.median == pytest.approx(statistics.median(values))


def test_a_spread_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        Spread(2.0, 1.0, 3.0)
