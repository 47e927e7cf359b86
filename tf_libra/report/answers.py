"""What the backend of the Libra tab answers about a log directory, without a server."""

import importlib.util
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tf_libra.planning.compare import IDEAL
from tf_libra.report.run import damaged_files
from tf_libra.tensorboard.views import SCALE_OUT

Parameters = dict[str, str]
Ask = Callable[[str, Parameters], dict[str, Any]]
Answers = list[tuple[str, Parameters, dict[str, Any]]]
_NEEDED = ("tensorboard", "plotly")
# All steps and plans that the tab would show.
_ALL = 10**6


def backend(folder: Path) -> Ask:
    """A function that asks a route of the backend, and returns {"value": ...} or {"error": ...}.

    Raises:
        ImportError: TensorBoard or Plotly is not installed.
        OSError: there is no such folder.
        ValueError: there is a file that is taken for one of events, and is none.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"a report needs {' and '.join(missing)}, not installed here (pip install"
            " tf-libra[tensorboard])"
        )
    if not folder.is_dir():
        raise NotADirectoryError(f"{str(folder)!r} is no log directory")
    # TensorBoard's switch for its own reader of event files: to import TensorFlow takes seconds.
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    from google.protobuf.message import DecodeError
    from tensorboard import errors
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext

    from tf_libra.tensorboard.routes import ROUTES, Query

    multiplexer = EventMultiplexer(
        size_guidance={"tensors": _ALL}, tensor_size_guidance={}, max_reload_threads=1
    )
    damaged = [
        {"file": str(path), "message": problem} for path, problem in damaged_files(folder).items()
    ]
    multiplexer.AddRunsFromDirectory(str(folder))
    try:
        multiplexer.Reload()
    except DecodeError:  # a file of records that are no events, with which nothing can be read
        raise ValueError("; ".join(map(describe_problem, damaged[:3]))) from None
    provider = MultiplexerDataProvider(multiplexer, str(folder))

    def ask(route: str, parameters: Parameters) -> dict[str, Any]:
        given = {name: [value] for name, value in parameters.items()}
        try:
            answer = ROUTES[route](Query(given, provider, RequestContext(), ""))
        except (ValueError, errors.PublicError) as error:
            return {"error": str(error)}
        if route == "runs":  # TensorBoard's own reader says nothing of files that are damaged
            answer["problems"] += damaged
        # As the tab gets it: tuples are lists, keys are texts.
        return {"value": json.loads(json.dumps(answer))}

    return ask


def problems_of(answers: Answers) -> list[str]:
    """What could not be read, each a sentence that names it."""
    runs = next(answer["value"] for route, _, answer in answers if route == "runs")
    return [describe_problem(one) for one in runs["problems"]]


def describe_problem(problem: dict[str, str]) -> str:
    """One of the problems of `runs`: a file that is damaged, or a summary in one."""
    if "file" in problem:
        return f"{problem['file']!r}: {problem['message']}"
    return f"run {problem['run']!r:.80}, tag {problem['tag']!r:.80}: {problem['message']}"


def all_answers(ask: Ask) -> Answers:
    """Everything that the tab may ask for, with the answer."""
    answers: Answers = []

    def keep(route: str, parameters: Parameters) -> Any:
        answer = ask(route, parameters)
        answers.append((route, parameters, answer))
        return answer.get("value")

    for heading in keep("runs", {})["plans"]:
        plan = {"run": heading["run"], "tag": heading["tag"]}
        if any(parameters == plan for _, parameters, _ in answers):
            continue  # the same plan, in force twice
        for group in range(heading["num_groups"]):
            keep("group", plan | {"group": str(group)})
        for route in ("plan", "contention", "history", "steps"):
            keep(route, plan)
        table = keep("strategies", plan) or {"rows": []}
        for workers in SCALE_OUT:
            if table["rows"] and workers >= heading["num_workers"]:
                keep("strategies", plan | {"workers": str(workers)})
        ranks = keep("ranks", plan)
        for step in [] if ranks is None else ranks["steps"]:
            keep("ranks", plan | {"step": str(step)})
        for show in ("predicted", "measured"):
            keep("timeline", plan | {"show": show})
        for row in table["rows"]:
            if row["strategy"] != IDEAL and row["backward_seconds"] is not None:
                r = row["num_threads"]
                threads = {} if r is None else {"threads": str(r)}
                keep("timeline", plan | {"show": row["strategy"]} | threads)
    return answers
