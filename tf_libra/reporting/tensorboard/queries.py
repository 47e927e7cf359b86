"""Answers about a log directory, as JSON values.

A request has a `LogSource` and typed arguments. Names are looked up in the source's listings, so a
request cannot reach outside of them. A missing name is a `NotFoundError`, any other fault a
`ValueError` with the reason.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tf_libra.planning import data_parallel as registered
from tf_libra.reporting import families as families
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.tensorboard import record_lookup
from tf_libra.reporting.tensorboard.cache import Cache
from tf_libra.reporting.tensorboard.log_source import LogSource, Series
from tf_libra.reporting.tensorboard.record_lookup import activations, digest, job_folder, sort_plans
from tf_libra.reporting.tensorboard.views.card_registry import CARDS
from tf_libra.reporting.tensorboard.views.contention import contention_view
from tf_libra.reporting.tensorboard.views.plan import group_view, plan_view
from tf_libra.reporting.tensorboard.views.steps import MeasuredRun, history_view, steps_view
from tf_libra.reporting.tensorboard.views.strategies import strategies_view, strategy_like
from tf_libra.reporting.tensorboard.views.timeline import (
    measured_timeline,
    predicted_timeline,
    ranks_view,
)

MEASURED, PREDICTED = "measured", "predicted"


def plan(source: LogSource, run: str, tag: str) -> dict[str, Any]:
    """Returns a plan; `has_graph` if the Graphs tab shows the graph under this plan."""
    record = record_lookup.read_plan(source, run, tag)
    steps = record_lookup.read_steps(source, run, record, count=1)
    hosts = sorted({step.host for step in steps if step.host})
    return plan_view(record, hosts) | {"has_graph": _has_graph(source, run, record)}


def _has_graph(source: LogSource, run: str, record: PlanRecord) -> bool:
    """Returns True if the run's graph in the Graphs tab is this plan's.

    The Graphs tab shows a run's last graph, of the plan activated before its time.
    """
    graph = source.graph_written(run)
    if graph is None:
        return False
    plans = [plan for plan in record_lookup.list_plans(source, run) if plan["written"] <= graph]
    last = max(plans, key=lambda plan: float(plan["written"]), default=None)
    return last is not None and bool(last["tag"] == record.tag)


def group(source: LogSource, run: str, tag: str, group: int) -> dict[str, Any]:
    """Returns one group of a plan."""
    return group_view(record_lookup.read_plan(source, run, tag), group)


def timeline(
    source: LogSource, run: str, tag: str, show: str, threads: int | None = None
) -> dict[str, Any] | None:
    """Returns a timeline: "measured", "predicted", or of a strategy with `threads`."""
    record = record_lookup.read_plan(source, run, tag)
    if show == PREDICTED:
        return predicted_timeline(record)
    if show == MEASURED:
        measured = record_lookup.read_timeline(source, run, record)
        return None if measured is None else measured_timeline(record, measured)
    if show not in registered.BY_NAME:
        allowed = ", ".join((PREDICTED, MEASURED, *registered.BY_NAME))
        raise ValueError(f"show must be one of {allowed}, got {show!r:.80}")
    return predicted_timeline(record, strategy_like(record, show, threads))


def ranks(source: LogSource, run: str, tag: str, step: int | None = None) -> dict[str, Any] | None:
    """Returns one step of all ranks; `step` selects one of the recorded steps."""
    record = record_lookup.read_plan(source, run, tag)
    steps = record_lookup.read_steps(source, run, record, record_lookup.TRACED_STEPS)
    return ranks_view(record, steps, step)


def contention(source: LogSource, run: str, tag: str) -> dict[str, Any]:
    """Returns the contention model with its samples."""
    return contention_view(record_lookup.read_plan(source, run, tag))


def strategies(
    source: LogSource, run: str, tag: str, workers: int | None = None, strategy: str | None = None
) -> dict[str, Any]:
    """Compares every strategy, or one of them, for the plan's or another number of workers."""
    return strategies_view(record_lookup.read_plan(source, run, tag), workers, strategy)


def steps(source: LogSource, run: str, tag: str) -> dict[str, Any]:
    """Returns measured whole steps under this plan and others."""
    record = record_lookup.read_plan(source, run, tag)
    return steps_view(record, run, _measured_runs(source))


def _measured_runs(source: LogSource) -> list[MeasuredRun]:
    """Returns all measurements; the listing of runs names the unreadable ones."""
    found = []
    headings = [
        heading
        for run in sorted(source.records())
        for heading in record_lookup.list_plans(source, run)
    ]
    for index, heading in enumerate(headings):
        run, tag = heading["run"], heading["tag"]
        record = record_lookup.read_plan(source, run, tag)
        if record.step != heading["step"]:
            continue  # an earlier activation: its steps count with the later one
        later = [
            other["step"]
            for other in headings[index + 1 :]
            if (other["run"], other["function"]) == (run, record.function)
            if other["step"] > record.step
        ]
        seconds = _steady_steps(source, run, record, min(later, default=None))
        measured = record_lookup.read_timeline(source, run, record)
        found.append(MeasuredRun(run, record, seconds, measured))
    return found


def _steady_steps(
    source: LogSource, run: str, record: PlanRecord, until: int | None
) -> tuple[float, ...]:
    """Returns steady-state steps under the plan up to step `until`; None: it is active."""
    tag = f"{record.function}/{record_types.STEP_SECONDS}"
    points = source.points(run, [tag], record_lookup.HISTORY_POINTS).get(tag, ())
    return tuple(
        value for step, value in points if step > record.step and (until is None or step < until)
    )


def history(source: LogSource, run: str, tag: str) -> dict[str, Any]:
    """Returns the series of the plan's training function, and its activated plans."""
    record = record_lookup.read_plan(source, run, tag)
    plans = [
        heading | {"predicted_seconds": _predicted_seconds(source, run, heading["tag"])}
        for heading in record_lookup.list_plans(source, run)
        if heading["function"] == record.function
    ]
    tags = {name: f"{record.function}/{name}" for name in record_types.SCALAR_TAGS}
    found = source.points(run, list(tags.values()), record_lookup.HISTORY_POINTS)
    return history_view(plans, {name: found.get(tag, ()) for name, tag in tags.items()})


def _predicted_seconds(source: LogSource, run: str, tag: str) -> float | None:
    """Returns backward's prediction by the present model, or else the plan's."""
    record = record_lookup.read_plan(source, run, tag)
    timeline = record.conclusion.predicted(record.plan)
    return record.plan.predicted_seconds if timeline is None else timeline.backward_seconds


_SHOWN: Cache[dict[str, Any]] = Cache(64)


def runs(source: LogSource) -> dict[str, Any]:
    """Returns all plans by run, functions without a plan, and unreadable items with reasons.

    Cards are complete. `stamps` change with every write to a run; `strategies` lists the registered
    ones.
    """
    plans: list[dict[str, Any]] = []
    cards: dict[str, list[dict[str, Any]]] = {card.name: [] for card in CARDS.values()}
    problems: list[dict[str, str]] = []
    for run, tags in sorted(source.records().items()):
        for tag, series in sorted(tags.items()):
            try:
                kind = record_types.parse_kind(series.content)
                if kind in CARDS:
                    shown = [_shown(kind, text) for _, text in source.documents(run, tag)]
                    cards[CARDS[kind].name] += [
                        {"run": run, "job": job_folder(run)} | view for view in shown
                    ]
                if kind == PlanRecord.KIND:
                    plans += activations(source, run, tag)
            except ValueError as error:
                problems.append({"run": run, "tag": tag, "message": str(error)})
    headings = sort_plans(plans)
    scalars = source.scalars()
    return {
        "plans": headings,
        **cards,
        "measuring": _measuring(source, scalars, headings),
        "strategies": _registered(),
        "stamps": _stamps(source.records(), scalars),
        "problems": problems,
    }


def _shown(kind: str, document: str) -> dict[str, Any]:
    return _SHOWN.get((kind, digest(document)), lambda: CARDS[kind].view(document))


def _measuring(
    source: LogSource,
    listed: Mapping[str, Mapping[str, Series]],
    plans: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Returns functions that run without a plan yet, with their step and budget."""
    planned = {(plan["run"], plan["function"]) for plan in plans}
    found = []
    for run, tags in sorted(listed.items()):
        for tag in sorted(tags):
            function, _, name = tag.rpartition("/")
            if name != record_types.MAX_TUNING_STEPS or (run, function) in planned:
                continue
            points = source.points(run, [tag], 1).get(tag, ())
            steps = [
                tags[name_tag].last_step
                for name_tag in (f"{function}/{series}" for series in record_types.SCALAR_TAGS)
                if name_tag in tags
            ]
            most = int(points[-1][1]) if points else 0
            found.append(
                {"run": run, "function": function, "step": max(steps, default=0), "most": most}
            )
    return found


def _registered() -> list[dict[str, Any]]:
    """Returns every registered strategy with its default tuning budget."""
    return [
        {
            "name": name,
            "tuning_steps": kind.tuning_steps,
            "tuning_seconds": kind.tuning_seconds,
        }
        for name, kind in registered.BY_NAME.items()
    ]


def _stamps(*listings: Mapping[str, Mapping[str, Series]]) -> dict[str, float]:
    stamps: dict[str, float] = {}
    for listed in listings:
        for run, tags in listed.items():
            latest = max((series.last_written for series in tags.values()), default=0.0)
            stamps[run] = max(stamps.get(run, 0.0), latest)
    return stamps
