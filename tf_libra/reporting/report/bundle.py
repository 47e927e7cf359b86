"""All answers of the tab about a log directory, without a server."""

import importlib.util
import json
from pathlib import Path
from typing import Any

from tf_libra.reporting.report.logdir_source import Folder
from tf_libra.reporting.tensorboard import routes
from tf_libra.reporting.tensorboard.record_lookup import NotFoundError

# From a route with its arguments to {"value": ...} or {"error": ...}.
Answers = list[tuple[str, routes.Arguments, dict[str, Any]]]
_NEEDED = ("tensorboard", "plotly")


def answers_about(folder: Path) -> Answers:
    """Return every request of the tab about a log directory, with its answer.

    Raises:
        ImportError: TensorBoard or Plotly is not installed.
        OSError: the folder does not exist.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"a report needs {' and '.join(missing)}, not installed here (pip install"
            " tf-libra[tensorboard])"
        )
    source = Folder.read(folder)
    answers = [
        (route, arguments, _answered(source, route, arguments))
        for route, arguments in routes.questions(source)
    ]
    runs_of(answers)["problems"] += source.damaged  # damage outside of summaries
    return answers


def _answered(source: Folder, route: str, arguments: routes.Arguments) -> dict[str, Any]:
    try:
        answer = routes.ROUTES[route].answer(source, **arguments)
    except (ValueError, NotFoundError) as error:
        return {"error": str(error)}
    # As JSON: tuples become lists, keys become texts.
    return {"value": json.loads(json.dumps(answer))}


def runs_of(answers: Answers) -> dict[str, Any]:
    """Return the answer about the log directory's runs."""
    found: dict[str, Any] = next(answer["value"] for route, _, answer in answers if route == "runs")
    return found


def problems_of(answers: Answers) -> list[str]:
    """Return one sentence per unreadable item."""
    return [describe_problem(one) for one in runs_of(answers)["problems"]]


def describe_problem(problem: dict[str, str]) -> str:
    """Describe a problem of `runs`: a damaged file or summary."""
    if "file" in problem:
        return f"{problem['file']!r}: {problem['message']}"
    return f"run {problem['run']!r:.80}, tag {problem['tag']!r:.80}: {problem['message']}"
