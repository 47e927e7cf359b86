"""Routes of the tab: requests by name, with their answers and arguments."""

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tf_libra.reporting.tensorboard import queries, record_lookup
from tf_libra.reporting.tensorboard.log_source import LogSource
from tf_libra.reporting.tensorboard.views.strategies import scale_out

Arguments = dict[str, Any]
# Longest accepted name.
_MAX_NAME = 64 * 1024
_MAX_DIGITS = 19


@dataclass(frozen=True)
class Route:
    """One request of the tab.

    Attributes:
      answer: function of a source and of the arguments in its signature: texts and integers,
        optional if they have a default.
      choices: returns the further arguments of a plan's source, run and tag; None for a request
        without a plan.
    """

    answer: Callable[..., Any]
    choices: Callable[[LogSource, str, str], Sequence[Arguments]] | None


def _no_choices(source: LogSource, run: str, tag: str) -> list[Arguments]:
    return [{}]


def _groups(source: LogSource, run: str, tag: str) -> list[Arguments]:
    plan = record_lookup.read_plan(source, run, tag).plan
    return [{"group": index} for index in range(len(plan.groups))]


def _steps(source: LogSource, run: str, tag: str) -> list[Arguments]:
    view = queries.ranks(source, run, tag)
    return [{}, *({"step": step} for step in ([] if view is None else view["steps"]))]


def _world_sizes(source: LogSource, run: str, tag: str) -> list[Arguments]:
    sizes = scale_out(record_lookup.read_plan(source, run, tag))
    return [{}, *({"workers": workers} for workers in sizes)]


def _timelines(source: LogSource, run: str, tag: str) -> list[Arguments]:
    found: list[Arguments] = [{"show": queries.PREDICTED}, {"show": queries.MEASURED}]
    for row in queries.strategies(source, run, tag)["rows"]:
        if not row["is_ideal"] and row["backward_seconds"] is not None:
            r = row["num_threads"]
            found.append({"show": row["strategy"]} | ({} if r is None else {"threads": r}))
    return found


ROUTES: Mapping[str, Route] = MappingProxyType(
    {
        "runs": Route(queries.runs, None),
        "plan": Route(queries.plan, _no_choices),
        "group": Route(queries.group, _groups),
        "timeline": Route(queries.timeline, _timelines),
        "ranks": Route(queries.ranks, _steps),
        "contention": Route(queries.contention, _no_choices),
        "strategies": Route(queries.strategies, _world_sizes),
        "steps": Route(queries.steps, _no_choices),
        "history": Route(queries.history, _no_choices),
    }
)


def all_requests(source: LogSource) -> Iterator[tuple[str, Arguments]]:
    """Yields every request about a log directory: routes with their arguments."""
    yield from ((name, {}) for name, route in ROUTES.items() if route.choices is None)
    plans = dict.fromkeys((plan["run"], plan["tag"]) for plan in queries.runs(source)["plans"])
    for run, tag in plans:
        for name, route in ROUTES.items():
            for choice in () if route.choices is None else route.choices(source, run, tag):
                yield name, {"run": run, "tag": tag} | choice


def parse_arguments(
    answer: Callable[..., Any], parameters: Mapping[str, Sequence[str]]
) -> Arguments:
    """Parses the arguments of an answer from HTTP texts.

    Raises:
      ValueError: an argument is missing, repeated, too long or no integer; named.
    """
    # The first parameter is the source.
    declared = itertools.islice(inspect.signature(answer).parameters.values(), 1, None)
    return {
        parameter.name: _value(parameter, parameters.get(parameter.name, ()))
        for parameter in declared
        if parameter.default is inspect.Parameter.empty or parameter.name in parameters
    }


def _value(parameter: inspect.Parameter, values: Sequence[str]) -> Any:
    name = parameter.name
    if len(values) != 1:
        raise ValueError(f"{name} must be given once, got {len(values)}")
    text = values[0]
    if len(text) > _MAX_NAME:
        raise ValueError(f"{name} must have at most {_MAX_NAME} characters")
    if parameter.annotation in (str, str | None):
        return text
    # int() also takes "1_0", " 1" and digits of other scripts.
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        raise ValueError(f"{name} must be an integer, got {text!r:.80}")
    return int(text)
