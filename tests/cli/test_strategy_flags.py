"""Flags for the arguments of strategies, also of different kinds."""

from dataclasses import dataclass
from typing import Any

import pytest
from absl import flags

from tf_libra.cli.strategy_flags import (
    define_arguments,
    define_strategy,
    named_strategy,
    passed_arguments,
)
from tf_libra.planning.arguments import argument


@dataclass(frozen=True)
class One:
    size: int = argument(3, "how large.")
    out: str = argument("", "not where to write.")
    sure: bool = argument(False, "whether.")
    rates: tuple[float, ...] = (0.5, 1.0)


@dataclass(frozen=True)
class Other:
    size: tuple[int, ...] = (1, 2)
    rates: tuple[float, ...] | None = None
    table: dict[str, int] | None = None


@dataclass(frozen=True)
class Last:
    size: bool = False
    rates: dict[str, float] | None = None


KINDS: dict[str, type[Any]] = {"one": One, "other": Other, "last": Last}


def values_of(*arguments: str) -> flags.FlagValues:
    values = flags.FlagValues()
    define_strategy(values, KINDS, "one")
    flags.DEFINE_string("out", None, "the command's own", flag_values=values)
    define_arguments(values, KINDS, without=("out", "sure"))
    values(["prog", *arguments])
    return values


def test_each_strategy_converts_a_flag_to_its_own_kind() -> None:
    assert named_strategy(values_of("--size=2"), KINDS) == One(2)
    assert named_strategy(values_of("--strategy=other", "--size=2"), KINDS) == Other((2,))
    assert named_strategy(values_of("--strategy=other", "--size=2,4"), KINDS) == Other((2, 4))
    assert named_strategy(values_of("--strategy=last", "--size=true"), KINDS) == Last(True)
    assert named_strategy(values_of("--rates=1,0.25"), KINDS) == One(rates=(1.0, 0.25))
    assert passed_arguments(values_of("--size=2", "--rates=1"), Other) == {
        "size": (2,),
        "rates": (1.0,),
    }


def test_flags_of_the_command_have_precedence() -> None:
    values = values_of("--out=there")
    assert named_strategy(values, KINDS) == One()
    assert values["out"].help == "the command's own"
    assert "sure" not in values and "table" not in values


def test_argument_with_the_name_of_a_command_flag_is_an_error() -> None:
    values = flags.FlagValues()
    flags.DEFINE_string("out", None, "the command's own", flag_values=values)
    with pytest.raises(ValueError, match=r"^out.*'one'.*'out'$"):
        define_arguments(values, KINDS)


def test_training_argument_has_no_flag() -> None:
    @dataclass(frozen=True)
    class Trained:
        seed: int = argument(1, "of draws", in_training=True)
        size: int = 1

    @dataclass(frozen=True)
    class Drawn:
        seed: int = 2

    values = flags.FlagValues()
    define_arguments(values, {"trained": Trained})
    assert "size" in values and "seed" not in values
    both = {"trained": Trained, "drawn": Drawn}
    values = flags.FlagValues()
    define_strategy(values, both, "trained")
    define_arguments(values, both)
    assert values["seed"].help == "(drawn); by default 2"
    values(["prog", "--seed=5"])
    assert passed_arguments(values, Trained) == {} and passed_arguments(values, Drawn) == {
        "seed": 5
    }
    with pytest.raises(ValueError, match=r"^seed .*trained, .*size$"):
        named_strategy(values, both)


def test_help_groups_strategies_by_description() -> None:
    values = values_of()
    assert values["size"].help.splitlines() == [
        "how large (one); by default 3",
        "(other); by default 1,2",
        "(last); by default False",
    ]
    assert values["rates"].help.splitlines() == ["(one); by default 0.5,1.0", "(other)"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategy=none"], "strategy must be one of one, other, last, got 'none'"),
        (["--strategy=last", "--rates=1"], "rates cannot be set by a flag, got"),
        (["--size=x"], "size must be an integer, got 'x'"),
        (["--strategy=other", "--size=1,x"], "size must be integers separated by commas, got"),
        (["--strategy=last", "--size=4"], "size must be true or false, got '4'"),
        (["--rates=1,b"], r"rates must be numbers separated by commas, got \['1', 'b'\]"),
    ],
)
def test_malformed_value_is_an_error(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        named_strategy(values_of(*arguments), KINDS)


def test_argument_of_another_strategy_is_an_error() -> None:
    narrow = {"narrow": Last, "wide": One}
    values = flags.FlagValues()
    define_strategy(values, narrow, "narrow")
    define_arguments(values, narrow)
    values(["prog", "--sure"])
    with pytest.raises(ValueError, match=r"^sure .*narrow, .*size, rates"):
        named_strategy(values, narrow)
