"""Shared fixtures of the tests of tuning."""

import functools
import pickle
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from tf_libra.autotune import candidates, fit_and_plan, interleaved_trials, portfolio_tuner

_Found = TypeVar("_Found")


def _once(function: Callable[..., _Found]) -> Callable[..., _Found]:
    """Returns the function with a cache, keyed by the exact arguments."""
    found: dict[bytes, _Found] = {}

    @functools.wraps(function)
    def counted(*args: Any, **options: Any) -> _Found:
        try:
            key = pickle.dumps((args, options))
        except (pickle.PicklingError, AttributeError, TypeError):  # what a test has made for itself
            return function(*args, **options)
        if key not in found:
            found[key] = function(*args, **options)
        return found[key]

    return counted


_COMPUTED_ONCE = {
    (module, name): _once(getattr(module, name))
    for module, name in (
        (fit_and_plan, "fit_model"),
        (fit_and_plan, "cross_validate"),
        *((module, "make_plan") for module in (fit_and_plan, candidates, portfolio_tuner)),
        (interleaved_trials, "estimate_paired_timings"),
    )
}


@pytest.fixture(autouse=True)
def computed_once() -> Iterator[None]:
    """Caches the slowest parts of tuning by their arguments, which alone decide the results.

    Most machines here do the same until a model is fitted, and many until the end of a race.
    """
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), once in _COMPUTED_ONCE.items():
            patch.setattr(module, name, once)
        yield


@pytest.fixture
def anew(computed_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the cache for one test."""
    for (module, name), once in _COMPUTED_ONCE.items():
        monkeypatch.setattr(module, name, once.__wrapped__)
