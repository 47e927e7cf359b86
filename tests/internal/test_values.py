"""Fields of values are checked by their annotations."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from tf_libra.internal import validation
from tf_libra.internal.values import (
    AtLeastOne,
    Int32Count,
    Names,
    Natural,
    Naturals,
    NonNegative,
    Positive,
    Value,
    ascending_counts,
    field_names,
    one_of,
    plain,
)


class Planner(Protocol):
    name: str


@dataclass(frozen=True)
class Span(Value):
    start: NonNegative
    stop: float

    def _validate(self) -> None:
        validation.real("stop", self.stop, minimum=self.start)


@dataclass(frozen=True)
class Example(Value):
    text: str = "a"
    flag: bool = False
    offset: int = -3
    rate: float = -0.5
    natural: Natural = 0
    threads: Int32Count = 1
    positive: Positive = 1.0
    factor: AtLeastOne | None = None
    kind: Literal["forward", "backward"] = "forward"
    rule: Annotated[str, one_of(("first", "second"))] = "first"
    counts: Annotated[tuple[int, ...], ascending_counts("number of threads")] = (1,)
    names: Names = ()
    sizes: Naturals = ()
    pair: tuple[int, float] = (0, 0.0)
    spans: tuple[Span, ...] = ()
    span: Span | None = None
    array: NDArray[np.float64] | None = None
    planner: Planner | None = None
    either: int | str = 0
    anything: Any = None

    LIMIT: ClassVar[int] = 3


@pytest.mark.parametrize(
    ("field", "given", "stored"),
    [
        ("offset", np.int64(-7), -7),
        ("natural", 3.0, 3),
        ("rate", 2, 2.0),
        ("factor", np.float32(2), 2.0),
        ("counts", [4, 1, 4], (1, 4)),
        ("sizes", np.array([3, 1]), (3, 1)),
        ("pair", [np.int32(1), 2], (1, 2.0)),
        ("spans", [Span(0, 1)], (Span(0.0, 1.0),)),
        ("either", "unchecked", "unchecked"),
        ("anything", math.nan, math.nan),
    ],
)
def test_field_is_stored_in_its_type(field: str, given: Any, stored: Any) -> None:
    found = getattr(Example(**{field: given}), field)
    assert type(found) is type(stored)
    assert found == stored or found is stored
    if isinstance(stored, tuple):
        assert list(map(type, found)) == list(map(type, stored))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("text", 3, "text must be a string, got 3"),
        ("flag", 1, "flag must be true or false, got 1"),
        ("offset", 1.5, "offset must be an integer, got 1.5"),
        ("offset", 2**63, "offset must be from -9223372036854775808 to"),
        ("rate", math.inf, "rate must be a finite number, got inf"),
        ("natural", -1, "natural must be from 0 to 9223372036854775807, got -1"),
        ("natural", True, "natural must be an integer, got True"),
        ("threads", 2**31, "threads must be from 1 to 2147483647, got 2147483648"),
        ("positive", 0, "positive must be greater than 0, got 0"),
        ("factor", 0.5, "factor must be at least 1, got 0.5"),
        ("kind", "sideways", "kind must be one of forward, backward, got 'sideways'"),
        ("rule", np.array(["first"]), "rule must be one of first, second, got array"),
        ("counts", [], r"counts must hold at least one number of threads, got \(\)"),
        ("counts", [0], "counts must be from 1 to 2147483647, got 0"),
        ("names", ["a", "a"], "names must be unique"),
        ("pair", (1,), r"pair must have 2 entries, got \(1,\)"),
        ("pair", (1, "x"), r"pair\[1\] must be a finite number, got 'x'"),
        ("spans", [Span(0, 1), 3], r"spans\[1\] must be a Span, got int"),
        ("span", {"start": 0, "stop": 1}, "span must be a Span, got dict"),
    ],
)
def test_wrong_field_is_named(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Example(**{field: value})
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Example(), **{field: value})


def test_constraint_between_fields_sees_checked_fields() -> None:
    with pytest.raises(ValueError, match=r"stop.*2"):
        Span(2, np.int64(1))


def test_fields_of_base_classes_are_checked() -> None:
    @dataclass(frozen=True)
    class Longer(Span):
        unknown: "Missing" = 3  # noqa: F821
        name: str = ""

    assert Longer(0, 1, unknown="x").unknown == "x"
    with pytest.raises(ValueError, match=r"start.*0"):
        Longer(-1, 1)


def test_value_is_read_from_its_fields() -> None:
    example = Example(spans=(Span(0, 1),), span=Span(1, 2), counts=(1, 2))
    fields = example.to_document()
    assert fields["spans"] == [{"start": 0.0, "stop": 1.0}]
    assert Example.from_fields("example", fields) == example
    with pytest.raises(ValueError, match=r"^spans\[0\]:.*3"):
        Example.from_fields("example", {"spans": [{"start": 3, "stop": 1}]})
    with pytest.raises(ValueError, match=r"^example:.*3"):
        Example.parse("example", {"span": {"start": 3, "stop": 1}})
    with pytest.raises(ValueError, match=r"example.*\['LIMIT'\]"):
        Example.parse("example", {"LIMIT": 3})
    assert field_names(Span) == (["start", "stop"], [])


def test_plain_values_are_json_values() -> None:
    @dataclass
    class Pair:
        left: Any
        right: Any

    pair = Pair(np.array([[1.0, 2.0]]), (np.int64(3), Span(0, 1)))
    assert plain(pair) == {"left": [[1.0, 2.0]], "right": [3, {"start": 0.0, "stop": 1.0}]}
