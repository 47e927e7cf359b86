"""Options of `optimize` and of its groups, from keyword arguments."""

from typing import Any

import pytest

import tf_libra
from tf_libra import config
from tf_libra.config import option_groups

GROUPED = [option for option in config.declared(config.DataParallelOptions) if option.group]
# A value of each option that differs from its default.
OTHERS = {
    "max_seconds": 8.5,
    "max_model_error": 0.5,
    "retune_overhead": 0.1,
    "liveness_seconds": 20.0,
    "stall_warn_seconds": 2.0,
}


def grouped(option: config.Option, value: Any) -> Any:
    return option_groups.GROUPS[option.group](**{option.name: value})


@pytest.mark.parametrize("option", GROUPED, ids=lambda option: option.name)
def test_option_of_a_group_is_set_and_checked_by_the_group(option: config.Option) -> None:
    value = OTHERS[option.name]
    found = config.resolve({option.group: grouped(option, value)})
    assert getattr(getattr(found, option.group), option.name) == value
    assert found != config.resolve({})
    for wrong in (-1, "soon", float("nan")):
        with pytest.raises(ValueError, match=f"^{option.name} must be "):
            grouped(option, wrong)
    with pytest.raises(TypeError, match=option.name):
        config.resolve({option.name: value})


def test_range_of_liveness_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (4, 1e6):
        with pytest.raises(ValueError, match="liveness_seconds must be between 5 and 86400, got"):
            tf_libra.Faults(liveness_seconds=wrong)
    assert tf_libra.Faults().liveness_seconds == 10
    monkeypatch.setenv("TF_LIBRA_LIVENESS_SECONDS", "30")
    assert tf_libra.Faults().liveness_seconds == 30
    assert tf_libra.Faults(liveness_seconds=5).liveness_seconds == 5


@pytest.mark.parametrize("taker", option_groups.REPLACEMENTS)
def test_misplaced_argument_is_an_error_with_its_place(taker: str) -> None:
    takers: dict[str, Any] = {
        "optimize": tf_libra.optimize, "Tuning": tf_libra.Tuning, "Faults": tf_libra.Faults
    }  # fmt: skip
    names = [
        option.name for option in config.declared(config.DataParallelOptions) if not option.group
    ]
    for name, replacement in option_groups.REPLACEMENTS[taker].items():
        assert name not in names or taker != "optimize"
        with pytest.raises(TypeError) as caught:
            takers[taker](**{name: 1})
        assert replacement in str(caught.value)


def test_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_steps'"):
        tf_libra.optimize("libra", max_steps=3)
    with pytest.raises(TypeError, match="'steps'"):
        tf_libra.Tuning(steps=3)  # type: ignore[call-arg]


def test_checked_options_stay_as_they_are() -> None:
    once = config.resolve(
        {"max_tuning_steps": 4, "logdir": "somewhere", "broadcast_variables": True}
    )
    names = [
        option.name for option in config.declared(config.DataParallelOptions) if not option.group
    ]
    assert config.DataParallelOptions(**{name: getattr(once, name) for name in names}) == once
