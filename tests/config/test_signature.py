"""The declared options are those that functions take and documents describe."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import tf_libra
from tf_libra import config, strategies
from tf_libra.decorator import optimize
from tf_libra.planning.arguments import arguments_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
ALL = tuple(config.declared())


def functions() -> list[Any]:
    from tf_libra.keras.fit import optimize as of_keras

    return [optimize, of_keras]


@pytest.mark.parametrize("option", ALL, ids=lambda one: one.alone or one.name)
def test_functions_take_every_option_and_say_what_it_does(option: config.Option) -> None:
    name = option.alone or option.name
    for function in functions():
        assert name in inspect.signature(function).parameters
        told = " ".join(inspect.getdoc(function).split())
        assert f" {name}: " in told
        assert option.doc in told


def test_defaults_in_signatures_are_those_declared() -> None:
    ours, of_keras = (inspect.signature(function).parameters for function in functions())
    assert {name: one.default for name, one in ours.items()} == {
        one.alone or one.name: one.default for one in ALL
    }
    others = {name for name in ours if ours[name].default != of_keras[name].default}
    assert others == {"progress"}
    assert list(of_keras) == ["model", *ours]


def test_static_checkers_know_every_option_as_declared() -> None:
    known = {
        name: one.__forward_arg__ for name, one in config.OptimizeKwargs.__annotations__.items()
    }
    assert known == {one.alone or one.name: one.kind for one in ALL if one.name != "strategy"}
    assert not config.OptimizeKwargs.__required_keys__


def test_strategy_alone_may_be_given_by_place() -> None:
    kinds = {one.name: one.kind for one in inspect.signature(optimize).parameters.values()}
    by_place = [name for name, kind in kinds.items() if kind is not inspect.Parameter.KEYWORD_ONLY]
    assert by_place == ["strategy"]
    assert tf_libra.optimize("wfbp").keywords["options"].strategy.name == "wfbp"


def test_docstrings_keep_to_100_columns() -> None:
    for function in functions():
        assert max(map(len, function.__doc__.splitlines())) <= 100


def row(option: config.Option) -> str:
    name = f"`{option.name}`"
    if option.group:
        name = f"`{option.group}.{option.name}`, alone `{option.alone}`"
    default = option.default if isinstance(option.default, str) else repr(option.default)
    return f"| {name} | `{default}` | {option.doc} |"


def test_page_has_every_option_as_declared() -> None:
    """A failure shows the expected table of the page, line by line."""
    assert rows("# Options of `optimize`") == [row(option) for option in ALL]


def rows(heading: str) -> list[str]:
    """The lines of the table below a heading of the page."""
    section = PAGE.read_text().split(f"{heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `.*\|$", section, re.MULTILINE)


def rows_of(kind: type) -> list[str]:
    return [
        f"| `{kind.__name__}({one.name})` | `{one.default!r}` | {one.doc} |"
        for one in arguments_of(kind)
    ]


def test_page_has_every_argument_of_every_strategy() -> None:
    kinds = [getattr(strategies, name) for name in strategies.__all__]
    kinds = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    assert {kind.name for kind in kinds} >= set(strategies.BY_NAME)
    expected = [row for kind in kinds for row in rows_of(kind)]
    assert rows("## Arguments of strategies") == expected
