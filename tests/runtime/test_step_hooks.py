"""Hooks act in the order of their registration, and only those that are active."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tf_libra.reporting.records.record_types import Record
from tf_libra.runtime.step_hooks import HOOKS, active_hooks, around_wait


class Logged:
    """A hook that writes what it wraps into a list."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    @contextlib.contextmanager
    def around_step(self, is_settled: Callable[[], bool]) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def around_wait(self, what: str) -> Iterator[None]:
        self._log.append(f"{self._name} before {what}")
        yield
        self._log.append(f"{self._name} after {what}")

    def next_record(self) -> Callable[[str, int], Record] | None:
        return None

    def explain(self) -> str:
        return ""


@pytest.fixture
def log() -> Iterator[list[str]]:
    written: list[str] = []
    first, second = Logged("first", written), Logged("second", written)
    HOOKS.add("first", lambda: first)
    HOOKS.add("inactive", lambda: None)
    HOOKS.add("second", lambda: second)
    yield written
    for name in ("first", "inactive", "second"):
        HOOKS.forget(name)


def test_waits_are_wrapped_by_all_active_hooks(log: list[str]) -> None:
    with around_wait("receive"):
        log.append("receive")
    assert log == [
        "first before receive",
        "second before receive",
        "receive",
        "second after receive",
        "first after receive",
    ]


def test_inactive_hooks_are_left_out(log: list[str]) -> None:
    assert len(active_hooks()) == 2 and log == []
