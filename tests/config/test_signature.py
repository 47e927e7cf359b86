"""The declared options are those that functions take and their docstrings describe."""

import inspect
import pydoc
from typing import Any

import pytest

import tf_libra
from tf_libra import config
from tf_libra.decorator import optimize
from tf_libra.runtime.strategy_kinds import all_options

ALL = tuple(all_options())
ARGUMENTS = tuple(option for option in ALL if not option.group)


def functions() -> list[Any]:
    from tf_libra.keras.fit import optimize as of_keras

    return [optimize, of_keras]


@pytest.mark.parametrize("option", ARGUMENTS, ids=lambda argument: argument.name)
def test_functions_take_and_describe_every_option(option: config.Option) -> None:
    for function in functions():
        assert option.name in inspect.signature(function).parameters
        text = " ".join(inspect.getdoc(function).split())
        assert f" {option.name}: " in text
        assert option.doc in text


def test_options_of_groups_are_no_arguments() -> None:
    assert len(ALL) > len(ARGUMENTS)
    names = set(inspect.signature(optimize).parameters)
    assert not names & {option.name for option in ALL if option.group}


def test_signatures_have_the_declared_defaults() -> None:
    ours, of_keras = (inspect.signature(function).parameters for function in functions())
    assert {name: our.default for name, our in ours.items()} == {
        argument.name: argument.default for argument in ARGUMENTS
    }
    others = {name for name in ours if ours[name].default != of_keras[name].default}
    assert others == {"progress"}
    assert list(of_keras) == ["model", *ours]


def test_static_checkers_know_every_option_as_declared() -> None:
    known = {
        name: reference.__forward_arg__
        for name, reference in config.OptimizeKwargs.__annotations__.items()
    }
    assert known == {
        argument.name: argument.kind for argument in ARGUMENTS if argument.name != "strategy"
    }
    assert list(known) == [argument.name for argument in ARGUMENTS if argument.name != "strategy"]
    assert not config.OptimizeKwargs.__required_keys__


def test_help_fits_one_screen() -> None:
    text = pydoc.plain(pydoc.render_doc(optimize))
    assert len(text.splitlines()) <= 50


def test_strategy_alone_may_be_positional() -> None:
    kinds = {
        parameter.name: parameter.kind
        for parameter in inspect.signature(optimize).parameters.values()
    }
    by_place = [name for name, kind in kinds.items() if kind is not inspect.Parameter.KEYWORD_ONLY]
    assert by_place == ["strategy"]
    assert tf_libra.optimize("wfbp").keywords["options"].strategy.name == "wfbp"


def test_docstrings_keep_to_100_columns() -> None:
    for function in functions():
        assert max(map(len, function.__doc__.splitlines())) <= 100
