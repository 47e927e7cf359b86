"""Comparing what ranks state."""

import pytest

from tf_libra.coordination.consistency_check import first_difference


def test_equal_statements_do_not_differ() -> None:
    statement = {"plan": None, "gradient": {"w": "float32 (3,)"}, "names": ["w"]}
    assert first_difference([statement, dict(statement), dict(statement)]) is None
    assert first_difference([statement]) is None
    assert first_difference([{}, {}]) is None


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        ("2.21.0", "2.18.1", "x is '2.21.0' on rank 0 and '2.18.1' on rank 1"),
        (None, "abc", "x is None on rank 0 and 'abc' on rank 1"),
        (["a", "b"], ["a", "c"], "x[1] is 'b' on rank 0 and 'c' on rank 1"),
        (["a", "b"], ["a"], "number of x is 2 on rank 0 and 1 on rank 1"),
        ([], ["a"], "number of x is 0 on rank 0 and 1 on rank 1"),
        ({"w": 1}, {"w": 2}, "x['w'] is 1 on rank 0 and 2 on rank 1"),
        ({"w": [1, 2]}, {"w": [1, 3]}, "x['w'][1] is 2 on rank 0 and 3 on rank 1"),
        ({"w": 1, "v": 1}, {"w": 1}, "x['v'] is 1 on rank 0 and None on rank 1"),
        ({"w": 1}, {"w": 1, "v": 1}, "x['v'] is None on rank 0 and 1 on rank 1"),
        (["a"], "a", "x is ['a'] on rank 0 and 'a' on rank 1"),
    ],
)
def test_first_difference_is_named(left: object, right: object, said: str) -> None:
    assert first_difference([{"x": left}, {"x": right}]) == said


def test_order_of_the_statement_decides_what_comes_first() -> None:
    mine = {"world size": 2, "version": "a", "plan": "p"}
    other = {"plan": "q", "version": "b", "world size": 2}
    reported = first_difference([mine, other])
    assert reported == "version is 'a' on rank 0 and 'b' on rank 1"


def test_rank_that_differs_is_named() -> None:
    reported = first_difference([{"plan": "p"}, {"plan": "p"}, {"plan": "q"}, {"plan": "r"}])
    assert reported == "plan is 'p' on rank 0 and 'q' on rank 2"


def test_key_missing_on_one_rank_is_a_difference() -> None:
    assert first_difference([{"plan": "p"}, {}]) == "plan is 'p' on rank 0 and None on rank 1"
