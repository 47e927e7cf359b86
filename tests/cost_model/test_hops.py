"""The hosts of one rank that form a square, as in lanes; num_hops is tested with the models."""

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tf_libra.cost_model import hops
from tf_libra.cost_model.hops import row_of_square

GRID = Path(__file__).resolve().parents[2] / "ops" / "lanes" / "grid.h"


def test_squares_begin_where_those_of_lanes_do() -> None:
    assert f"static constexpr int kLeastSquare = {hops.LEAST_SQUARE};" in GRID.read_text()
    assert row_of_square(hops.LEAST_SQUARE - 1) is None
    assert row_of_square(hops.LEAST_SQUARE) == 4


def test_rows_are_the_longer_side() -> None:
    assert [row_of_square(num) for num in (17, 18, 22, 24, 60, 64)] == [None, 6, 11, 6, 10, 8]
    assert row_of_square(6) is None
    assert [row_of_square(num, least=4) for num in (3, 4, 5, 6, 9)] == [None, 2, None, 3, 3]


@given(st.integers(1, 5000))
def test_a_row_is_of_the_squarest_rectangle(num_hosts: int) -> None:
    row = row_of_square(num_hosts)
    sides = [a for a in range(2, num_hosts) if num_hosts % a == 0]
    if row is None:
        assert not sides or num_hosts < hops.LEAST_SQUARE
    else:
        assert row == min(side for side in sides if side >= math.sqrt(num_hosts))
