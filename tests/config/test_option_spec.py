"""The declaration of options, and the check of all of them together."""

import dataclasses
from typing import Any

import pytest

from tf_libra.config.option_spec import Option, check_all, option


def positive(name: str, value: Any) -> int:
    if value <= 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return int(value)


@dataclasses.dataclass(frozen=True)
class Declared:
    first: int = option(
        1,
        "int",
        positive,
        """What it does,
           on two lines.""",
    )
    second: int = option(2, "int", positive, "More.", agreed=True)

    def __post_init__(self) -> None:
        check_all(self)


def test_declaration_is_in_the_metadata_of_each_field() -> None:
    first, second = (declared.metadata for declared in dataclasses.fields(Declared))
    assert first["doc"] == "What it does, on two lines."
    assert (first["agreed"], second["agreed"]) == (False, True)
    for field in dataclasses.fields(Declared):
        metadata: Any = field.metadata
        assert Option(field.name, field.default, **metadata).path == field.name
        assert Option(field.name, 0, group="tuning", **metadata).path == f"tuning.{field.name}"


def test_every_field_is_what_its_check_makes_of_it() -> None:
    given: Any = (1.0, 7.0)
    made = Declared(*given)
    assert made == Declared(1, 7) and type(made.second) is int
    assert Declared() == Declared(1, 2)
    with pytest.raises(ValueError, match=r"second.*0"):
        Declared(1, 0)
