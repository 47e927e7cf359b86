"""Values from outside are read as they are meant, or rejected by field, value and range."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tf_libra.internal import validation


@pytest.mark.parametrize("value", [3, 3.0, np.int64(3), np.float64(3.0), np.float32(3)])
def test_whole_numbers_are_integers(value: Any) -> None:
    found = validation.integer("count", value, 3, 3)
    assert (type(found), found) == (int, 3)


@pytest.mark.parametrize("value", [0.25, 1, np.float32(0.25), np.int8(1)])
def test_numbers_are_floats(value: Any) -> None:
    found = validation.real("share", value, minimum=0.25, above=0.2)
    assert (type(found), found) == (float, float(value))


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (validation.integer, 2.5, "n must be an integer, got 2.5"),
        (validation.integer, True, "n must be an integer, got True"),
        (validation.integer, "3", "n must be an integer, got '3'"),
        (validation.integer, math.inf, "n must be an integer, got inf"),
        (validation.integer, -1, "n must be from 0 to 9223372036854775807, got -1"),
        (
            validation.integer,
            2**63,
            "n must be from 0 to 9223372036854775807, got 9223372036854775808",
        ),
        (validation.integer, float, "n must be an integer, got <class 'float'>"),
        (validation.integer, np.array([3, 4]), "n must be an integer, got array([3, 4])"),
        (validation.real, True, "n must be a finite number, got True"),
        (validation.real, "1", "n must be a finite number, got '1'"),
        (validation.real, math.nan, "n must be a finite number, got nan"),
        (validation.real, 10**400, "n must be a finite number, got 1000"),
        (validation.text, b"a", "n must be a string, got b'a'"),
        (validation.text, "\ud800", "n must be valid Unicode"),
        (validation.boolean, 1, "n must be true or false, got 1"),
        (validation.sequence, "ab", "n must be a list, got 'ab'"),
        (validation.sequence, {"a": 1}, "n must be a list, got {'a': 1}"),
        (validation.sequence, 3, "n must be a list, got 3"),
        (validation.text, np.eye(2), "n must be a string, got array([[1., 0.],        [0., 1.]])"),
        (validation.sequence, np.array(3), "n must be a list, got array(3)"),
        (validation.integers, [1, 2.5], "n must be an integer, got 2.5"),
        (validation.names, ["a", "a"], "n must be unique"),
        (validation.text, list(range(100)), "..."),  # what is long is cut
    ],
)
def test_wrong_value_is_named(check: Callable[..., Any], value: Any, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        check("n", value)
    assert message in str(raised.value)
    assert len(str(raised.value)) < 130


@pytest.mark.parametrize("check", [validation.integer, validation.real, validation.text])
def test_number_with_too_many_digits_is_named(check: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"n must be .*, got a number of too many digits"):
        check("n", 10**5000)


def test_bounds_are_named() -> None:
    with pytest.raises(ValueError, match=r"n must be at least 0.5, got 0.25"):
        validation.real("n", 0.25, minimum=0.5)
    with pytest.raises(ValueError, match=r"n must be greater than 0, got 0.0"):
        validation.real("n", 0, above=0)
    with pytest.raises(ValueError, match=r"n must be at most 1, got 1.5"):
        validation.real("n", 1.5, maximum=1)
    with pytest.raises(ValueError, match=r"n must be from 1 to 4, got 5"):
        validation.integer("n", 5, 1, 4)


def test_columns_have_an_entry_per_row() -> None:
    validation.same_length("sizes", [1, 2], "tensor", 2)
    with pytest.raises(ValueError, match=r"sizes.*3,.*2"):
        validation.same_length("sizes", [1, 2], "tensor", 3)


def test_instance_of_another_class_is_named() -> None:
    with pytest.raises(ValueError, match="p must be a int, got str"):
        validation.instance("p", "3", int)


def test_document_is_returned_without_its_header() -> None:
    text = json.dumps({"format": "plan", "version": 2, "a": [1]})
    assert validation.json_document("plan", 2, text) == {"a": [1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "plan is not valid JSON"),
        ("[]", r"plan must be a JSON object, got \[\]"),
        pytest.param("[" * 100_000, "plan is nested too deep", id="deep"),
        ('{"format": "profile", "version": 2}', "format must be 'plan', got 'profile'"),
        ('{"format": "plan", "version": 1}', "version of plan must be 2, got 1"),
        ('{"format": "plan", "version": NaN}', "version must be a finite number, got NaN"),
        ('{"a": {"b": [1, [2, -Infinity]]}}', r"a\.b\[1\]\[1\] must be a finite number, got -Inf"),
        ("NaN", "plan must be a finite number, got NaN"),
        ('{"format": "plan", "version": 2, "a": 1, "a": 2}', "an object repeats a key"),
        (3, "plan must be a string, got 3"),
    ],
)
def test_wrong_document_is_named(text: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validation.json_document("plan", 2, text)
    with pytest.raises(ValueError, match=r"plan.*16777216"):
        validation.json_document("plan", 2, " " * (validation.MAX_JSON_CHARACTERS + 1))
