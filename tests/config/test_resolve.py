"""Options given flat, and in their groups."""

from typing import Any

import pytest

import tf_libra
from tf_libra import config

GROUPED = [one for one in config.declared() if one.group]
# Something else than the default for each.
OTHERS = {
    "max_steps": 7,
    "max_seconds": 8.5,
    "max_model_error": 0.5,
    "again_share": 0.1,
    "liveness_seconds": 20.0,
    "timeout_seconds": 90.0,
    "stall_warning_seconds": 2.0,
    "check_numerics": "skip",
}


def grouped(option: config.Option, value: Any) -> Any:
    return getattr(tf_libra, option.group.title())(**{option.name: value})


@pytest.mark.parametrize("option", GROUPED, ids=lambda one: one.name)
def test_option_of_a_group_may_be_given_alone(option: config.Option) -> None:
    value = OTHERS[option.name]
    alone = config.resolve({option.flat_name: value})
    together = config.resolve({option.group: grouped(option, value)})
    assert alone == together != config.resolve({})
    assert getattr(getattr(alone, option.group), option.name) == value


@pytest.mark.parametrize("option", GROUPED, ids=lambda one: one.name)
def test_option_alone_and_its_group_are_too_much(option: config.Option) -> None:
    given = {option.flat_name: OTHERS[option.name], option.group: grouped(option, option.default)}
    with pytest.raises(
        ValueError, match=f"{option.flat_name} must not be given with {option.group}"
    ):
        config.resolve(given)
    others = {one.flat_name: OTHERS[one.name] for one in GROUPED if one.group != option.group}
    assert config.resolve({option.group: grouped(option, OTHERS[option.name])} | others)


@pytest.mark.parametrize("option", GROUPED, ids=lambda one: one.name)
def test_what_is_wrong_is_named_as_it_was_given(option: config.Option) -> None:
    for wrong in (-1, "soon", float("nan")):
        with pytest.raises(ValueError, match=f"^{option.flat_name} must be "):
            config.resolve({option.flat_name: wrong})
        with pytest.raises(ValueError, match=f"^{option.name} must be "):
            grouped(option, wrong)


def test_option_that_there_is_not_is_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_steps'"):
        tf_libra.optimize("libra", max_steps=3)


def test_options_of_options_are_the_same() -> None:
    once = config.resolve({"threads": (2, 1), "max_tuning_steps": 4, "logdir": "somewhere"})
    names = [one.name for one in config.declared() if not one.group]
    assert config.DataParallelOptions(**{name: getattr(once, name) for name in names}) == once
