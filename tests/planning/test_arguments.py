"""Arguments of strategies: kinds, defaults and descriptions."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional

import pytest

from tf_libra import strategies
from tf_libra.model_parallel.planning.burst import BY_NAME as BURSTS
from tf_libra.model_parallel.planning.pipeline import BY_NAME as PIPELINES
from tf_libra.planning.arguments import Argument, argument, arguments_of


@dataclass(frozen=True, kw_only=True)
class First:
    """A strategy with two arguments."""

    name: ClassVar[str] = "first"
    amount: int = argument(3, "how much.")
    many: tuple[float, ...] | None = argument(None, "how many of each.")


@dataclass(frozen=True, kw_only=True)
class Second(First):
    """A strategy with more arguments, most of them without a description."""

    amount: int = argument(2, "less.")
    text: Optional[str] = None  # noqa: UP045
    sure: bool = False
    names: tuple[str, ...] = field(default_factory=tuple)
    table: dict[str, int] | None = None
    pair: tuple[int, int] = (1, 2)
    either: int | str = 0
    derived: Any = field(init=False, default=0)


def test_arguments_are_fields_with_declared_descriptions() -> None:
    assert arguments_of(First) == (
        Argument("amount", int, False, 3, "how much."),
        Argument("many", float, True, None, "how many of each."),
    )


def test_field_of_another_type_has_no_kind() -> None:
    assert arguments_of(Second) == (
        Argument("amount", int, False, 2, "less."),
        Argument("many", float, True, None, "how many of each."),
        Argument("text", str, False, None, ""),
        Argument("sure", bool, False, False, ""),
        Argument("names", str, True, None, ""),
        Argument("table", None, False, None, ""),
        Argument("pair", None, False, (1, 2), ""),
        Argument("either", None, False, 0, ""),
    )


def test_argument_for_training_alone_is_marked() -> None:
    @dataclass(frozen=True)
    class Trained:
        size: int = 1
        seed: int = argument(3, "of draws.", in_training=True)

    assert arguments_of(Trained) == (
        Argument("size", int, False, 1, ""),
        Argument("seed", int, False, 3, "of draws.", in_training=True),
    )


def test_string_annotations_are_resolved() -> None:
    kind = dataclasses.make_dataclass("Late", [("amount", "float | None", None)], frozen=True)
    assert arguments_of(kind) == (Argument("amount", float, False, None, ""),)


def test_unresolvable_annotation_has_no_kind() -> None:
    kind = dataclasses.make_dataclass("Lost", [("amount", "Elsewhere | None", None)], frozen=True)
    assert arguments_of(kind) == (Argument("amount", None, False, None, ""),)


@pytest.mark.parametrize("by_name", [strategies.BY_NAME, PIPELINES, BURSTS])
def test_every_registered_argument_has_kind_and_description(by_name: Any) -> None:
    for kind in by_name.values():
        for found in arguments_of(kind):
            assert found.kind is not None and found.doc, (kind, found)
