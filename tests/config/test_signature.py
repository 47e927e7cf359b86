"""The declared options are those that functions take and their docstrings describe."""

import inspect
from typing import Any

import pytest

import tf_libra
from tf_libra import config
from tf_libra.decorator import optimize
from tf_libra.runtime.strategy_kinds import all_options

ALL = tuple(all_options())


def functions() -> list[Any]:
    from tf_libra.keras.fit import optimize as of_keras

    return [optimize, of_keras]


@pytest.mark.parametrize("option", ALL, ids=lambda one: one.keyword)
def test_functions_take_every_option_and_say_what_it_does(option: config.Option) -> None:
    name = option.keyword
    for function in functions():
        assert name in inspect.signature(function).parameters
        told = " ".join(inspect.getdoc(function).split())
        assert f" {name}: " in told
        assert option.doc in told


def test_defaults_in_signatures_are_those_declared() -> None:
    ours, of_keras = (inspect.signature(function).parameters for function in functions())
    assert {name: one.default for name, one in ours.items()} == {
        one.keyword: one.default for one in ALL
    }
    others = {name for name in ours if ours[name].default != of_keras[name].default}
    assert others == {"progress"}
    assert list(of_keras) == ["model", *ours]


def test_static_checkers_know_every_option_as_declared() -> None:
    known = {
        name: one.__forward_arg__ for name, one in config.OptimizeKwargs.__annotations__.items()
    }
    assert known == {one.keyword: one.kind for one in ALL if one.name != "strategy"}
    assert not config.OptimizeKwargs.__required_keys__


def test_strategy_alone_may_be_given_by_place() -> None:
    kinds = {one.name: one.kind for one in inspect.signature(optimize).parameters.values()}
    by_place = [name for name, kind in kinds.items() if kind is not inspect.Parameter.KEYWORD_ONLY]
    assert by_place == ["strategy"]
    assert tf_libra.optimize("wfbp").keywords["options"].strategy.name == "wfbp"


def test_docstrings_keep_to_100_columns() -> None:
    for function in functions():
        assert max(map(len, function.__doc__.splitlines())) <= 100
