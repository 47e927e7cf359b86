"""The arguments of strategies, and the types of their values."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional

import pytest

from tf_libra import strategies
from tf_libra.planning.arguments import IN_TRAINING, Argument, arguments_of
from tf_libra.planning.burst import BY_NAME as BURSTS
from tf_libra.planning.pipeline import BY_NAME as PIPELINES


@dataclass(frozen=True, kw_only=True)
class First:
    """A strategy with two arguments.

    Attributes:
      amount: how much, over
        two lines.
      many: how many of each.

    More of it.
    """

    name: ClassVar[str] = "first"
    amount: int = 3
    many: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Second(First):
    """A strategy with one more argument.

    Attributes:
      amount: less.
    """

    amount: int = 2
    text: Optional[str] = None  # noqa: UP045
    sure: bool = False
    names: tuple[str, ...] = field(default_factory=tuple)
    table: dict[str, int] | None = None
    pair: tuple[int, int] = (1, 2)
    either: int | str = 0
    derived: Any = field(init=False, default=0)


def test_arguments_are_fields_with_what_docstrings_say() -> None:
    assert arguments_of(First) == (
        Argument("amount", int, False, 3, "how much, over two lines."),
        Argument("many", float, True, None, "how many of each."),
    )


def test_what_no_text_can_say_has_no_kind() -> None:
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


def test_what_is_of_use_in_training_alone_says_so() -> None:
    @dataclass(frozen=True)
    class Trained:
        size: int = 1
        seed: int = field(default=3, metadata=IN_TRAINING)

    assert arguments_of(Trained) == (
        Argument("size", int, False, 1, ""),
        Argument("seed", int, False, 3, "", in_training=True),
    )


def test_annotations_may_be_texts() -> None:
    kind = dataclasses.make_dataclass("Late", [("amount", "float | None", None)], frozen=True)
    assert arguments_of(kind) == (Argument("amount", float, False, None, ""),)


def test_annotations_that_only_type_checkers_know_say_nothing() -> None:
    kind = dataclasses.make_dataclass("Lost", [("amount", "Elsewhere | None", None)], frozen=True)
    assert arguments_of(kind) == (Argument("amount", None, False, None, ""),)


@pytest.mark.parametrize("by_name", [strategies.BY_NAME, PIPELINES, BURSTS])
def test_all_of_ours_can_be_said_and_are_described(by_name: Any) -> None:
    for kind in by_name.values():
        for argument in arguments_of(kind):
            assert argument.kind is not None and argument.doc, (kind, argument)
