"""Cases of a benchmark: measured one after the other, with a saved result for each."""

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from absl import flags

from benchmarks import case_flags
from benchmarks.measuring import measured

# Longest time of `benchmarks.step_time` for one case.
_TIMEOUT_SECONDS = 340.0


class Case(Protocol):
    """One run of `benchmarks.step_time`."""

    @property
    def name(self) -> str:
        """For a reader, and as a key."""

    def command(self, rounds: int) -> list[str]:
        """Returns the command that measures it and writes JSON to `--json`."""


AnyCase = TypeVar("AnyCase", bound=Case)


def measure_cases(
    program: str,
    values: flags.FlagValues,
    cases: Iterable[AnyCase],
    summarize: Callable[[AnyCase, Mapping[str, Any]], dict[str, Any] | None],
    is_complete: Callable[[Mapping[str, Any]], bool] = lambda saved: True,
) -> tuple[dict[str, Any], int]:
    """Measures selected cases, saves each result, and returns all results and the failures' number.

    Args:
        program: name of the caller, for printed lines.
        values: the flags of `case_flags`.
        cases: in their order.
        summarize: returns the result to save from a case and its document; None is a failure.
        is_complete: returns whether a saved result need not be measured again.
    """
    by_name = {case.name: case for case in cases}
    with tempfile.TemporaryDirectory() as folder:

        def measure(name: str) -> dict[str, Any] | None:
            case = by_name[name]
            command, written = case.command(values.rounds), Path(folder, "out.json")
            document = measured(program, command, written, _TIMEOUT_SECONDS)
            return None if document is None else summarize(case, document)

        return save_cases(values, by_name, measure, is_complete)


def save_cases(
    values: flags.FlagValues,
    names: Iterable[str],
    measure: Callable[[str], dict[str, Any] | None],
    is_complete: Callable[[Mapping[str, Any]], bool] = lambda saved: True,
) -> tuple[dict[str, Any], int]:
    """Does the same as `measure_cases` for cases that are measured in another way.

    Args:
        values: the flags of `case_flags`.
        names: of the cases, in their order.
        measure: returns the result to save for a name; None is a failure.
        is_complete: returns whether a saved result need not be measured again.
    """
    path = Path(values.json)
    saved: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    deadline = case_flags.deadline(values)
    num_failed = 0
    for name in names:
        known = name in saved and is_complete(saved[name]) and not values.remeasure
        if known or not case_flags.is_selected(values, name):
            continue
        if time.monotonic() >= deadline:
            break
        result = measure(name)
        if result is None:
            num_failed += 1
            continue
        saved[name] = result
        path.write_text(json.dumps(saved, indent=1) + "\n")
    return saved, num_failed
