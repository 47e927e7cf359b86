"""Log directory without TensorBoard's server: reads all event files in one pass."""

import functools
import importlib.util
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tf_libra.reporting.records import event_reader
from tf_libra.reporting.records.event_reader import EventFile, Summary
from tf_libra.reporting.tensorboard import routes
from tf_libra.reporting.tensorboard.log_source import Series
from tf_libra.reporting.tensorboard.record_lookup import NotFoundError

_Value = TypeVar("_Value")
_Listing = Mapping[str, Mapping[str, Series]]
_BySeries = Mapping[str, Mapping[str, Sequence[Summary]]]


@dataclass(frozen=True)
class LogdirSource:
    """Content of a log directory, as a source of the tab's answers.

    Attributes:
        files: all event files below it, in order of creation within a folder.
        record_series: records by run and series.
        scalar_series: points by run and series.
        graphs: time of the last graph, by run.
    """

    files: tuple[EventFile, ...]
    record_series: _BySeries
    scalar_series: _BySeries
    graphs: Mapping[str, float]

    @classmethod
    def read(cls, path: Path) -> "LogdirSource":
        """Reads all event files below a folder.

        Raises:
            ImportError: TensorBoard is not installed.
            OSError: the folder does not exist.
        """
        if not path.is_dir():
            raise NotADirectoryError(f"{str(path)!r} is not a directory")
        files = tuple(event_reader.read(file) for file in sorted(path.glob(event_reader.PATTERN)))
        records: defaultdict[str, dict[str, list[Summary]]] = defaultdict(dict)
        scalars: defaultdict[str, dict[str, list[Summary]]] = defaultdict(dict)
        graphs: dict[str, float] = {}
        for file in files:
            run = str(file.path.parent.relative_to(path))
            for summary in file.summaries:
                series = scalars if summary.is_scalar else records
                series[run].setdefault(summary.tag, []).append(summary)
            if file.graph_written is not None:
                graphs[run] = max(graphs.get(run, 0.0), file.graph_written)
        return cls(files, dict(records), dict(scalars), graphs)

    @property
    def damaged(self) -> list[dict[str, str]]:
        """Returns the incompletely read files with their reasons."""
        return [
            {"file": str(file.path), "message": file.problem} for file in self.files if file.problem
        ]

    def records(self) -> _Listing:
        """Returns all series of records, by run and tag."""
        return self._listed[0]

    def scalars(self) -> _Listing:
        """Returns all series of scalars, by run and tag."""
        return self._listed[1]

    @functools.cached_property
    def _listed(self) -> tuple[_Listing, _Listing]:
        return _listing(self.record_series), _listing(self.scalar_series)

    def documents(self, run: str, tag: str, count: int = 1) -> Sequence[tuple[float, str]]:
        """Returns at most `count` records of a series; another content is a `ValueError`."""
        found = self.record_series.get(run, {}).get(tag, ())
        return [(summary.written, summary.text) for summary in _some(found, count)]

    def points(
        self, run: str, tags: Sequence[str], count: int
    ) -> Mapping[str, Sequence[tuple[int, float]]]:
        """Returns at most `count` points (step, value) of each series of scalars."""
        found = self.scalar_series.get(run, {})
        return {
            tag: [(summary.step, summary.number) for summary in _some(found[tag], count)]
            for tag in tags
            if tag in found
        }

    def graph_written(self, run: str) -> float | None:
        """Returns the time of a run's last graph; None without one."""
        return self.graphs.get(run)


def _listing(found: _BySeries) -> _Listing:
    return {
        run: {
            tag: Series(
                values[0].content,
                max(value.step for value in values),
                max(value.written for value in values),
            )
            for tag, values in tags.items()
        }
        for run, tags in found.items()
    }


def _some(values: Sequence[_Value], count: int) -> list[_Value]:
    """Returns at most `count` values, evenly spread, including the last."""
    most = len(values)
    if most <= count:
        return list(values)
    return [values[most * (index + 1) // count - 1] for index in range(count)]


# From a route with its arguments to {"value": ...} or {"error": ...}.
Answers = list[tuple[str, routes.Arguments, dict[str, Any]]]
_NEEDED = ("tensorboard", "plotly")


def collect_answers(folder: Path) -> Answers:
    """Returns every request of the tab about a log directory, with its answer.

    Raises:
        ImportError: TensorBoard or Plotly is not installed.
        OSError: the folder does not exist.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"a report needs {' and '.join(missing)}: pip install tf-libra[tensorboard]"
        )
    source = LogdirSource.read(folder)
    answers = [
        (route, arguments, _answered(source, route, arguments))
        for route, arguments in routes.all_requests(source)
    ]
    runs_answer(answers)["problems"] += source.damaged  # damage outside of summaries
    return answers


def _answered(source: LogdirSource, route: str, arguments: routes.Arguments) -> dict[str, Any]:
    try:
        answer = routes.ROUTES[route].answer(source, **arguments)
    except (ValueError, NotFoundError) as error:
        return {"error": str(error)}
    # As JSON: tuples become lists, keys become texts.
    return {"value": json.loads(json.dumps(answer))}


def runs_answer(answers: Answers) -> dict[str, Any]:
    """Returns the answer about the log directory's runs."""
    found: dict[str, Any] = next(answer["value"] for route, _, answer in answers if route == "runs")
    return found


def describe_problems(answers: Answers) -> list[str]:
    """Returns one sentence per unreadable item."""
    return [describe_problem(problem) for problem in runs_answer(answers)["problems"]]


def describe_problem(problem: dict[str, str]) -> str:
    """Describes a problem of `runs`: a damaged file or summary."""
    if "file" in problem:
        return f"{problem['file']!r}: {problem['message']}"
    return f"run {problem['run']!r:.80}, tag {problem['tag']!r:.80}: {problem['message']}"
