"""What the Libra tab may ask about a log directory, and the answers, as JSON values.

Every answer takes its data from `tf_libra.tensorboard.views`. What a question names is looked up
among what the data provider lists, so none leads anywhere else. What is wrong with it is a
`ValueError` or one of TensorBoard's public errors, with the reason.
"""

import contextlib
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tensorboard import errors
from tensorboard.context import RequestContext
from tensorboard.data import provider

from tf_libra import checks, strategies
from tf_libra.records import history, kinds
from tf_libra.records.background import BackgroundRecord
from tf_libra.records.burst import BurstRecord
from tf_libra.records.kinds import PLUGIN_NAME
from tf_libra.records.pipeline import PipelineRecord
from tf_libra.records.plan import PlanRecord
from tf_libra.records.step import StepRecord
from tf_libra.records.timeline import TimelineRecord
from tf_libra.tensorboard import ranks, views
from tf_libra.tensorboard.cache import Cache

_HISTORY_POINTS = 1000
# The whole of a series of plans is shown; it has one value per time that it came into force.
_PLAN_POINTS = 100
# The traced steps whose median is shown, of those that TensorBoard has kept.
_TRACED_STEPS = 50
# Names as long as this are shown; longer ones are no names.
_MAX_NAME = 64 * 1024
# TensorBoard's own plugin for graphs.
_GRAPHS = "graphs"
_RANK = re.compile(r"(^|/)rank_\d+$")


class Query:
    """One question: its parameters, checked, and the data of its experiment."""

    def __init__(
        self,
        parameters: Mapping[str, Sequence[str]],
        data: provider.DataProvider,
        context: RequestContext,
        experiment: str,
    ) -> None:
        """Reads nothing yet.

        Args:
            parameters: what was given, by name.
            data: reads summaries.
            context: who asks, for the data provider.
            experiment: whose data.
        """
        self._parameters = parameters
        self._data = data
        self._context = context
        self._experiment = experiment

    def text(self, name: str) -> str:
        """A parameter that has to be given, once; else `ValueError`."""
        values = self._parameters.get(name, ())
        if len(values) != 1:
            raise ValueError(f"{name} must be given once, got {len(values)}")
        if len(values[0]) > _MAX_NAME:
            raise ValueError(f"{name} must have at most {_MAX_NAME} characters")
        return str(values[0])

    def integer(self, name: str, minimum: int, maximum: int) -> int:
        """Likewise, a number within its range."""
        text = self.text(name)
        # int() also takes "1_0", " 1" and digits of other scripts.
        if not (text.isascii() and text.isdigit()) or len(text) > 19:
            raise ValueError(f"{name} must be an integer, got {text!r:.80}")
        return checks.integer(name, int(text), minimum, maximum)

    def has(self, name: str) -> bool:
        """Whether a parameter was given."""
        return name in self._parameters

    def listed(self) -> Mapping[str, Mapping[str, provider.TensorTimeSeries]]:
        """All series of records, by run and tag."""
        found: Mapping[str, Mapping[str, provider.TensorTimeSeries]] = self._data.list_tensors(
            self._context, experiment_id=self._experiment, plugin_name=PLUGIN_NAME
        )
        return found

    def listed_scalars(self) -> Mapping[str, Mapping[str, provider.ScalarTimeSeries]]:
        """All series of scalars, by run and tag."""
        found: Mapping[str, Mapping[str, provider.ScalarTimeSeries]] = self._data.list_scalars(
            self._context, experiment_id=self._experiment, plugin_name=PLUGIN_NAME
        )
        return found

    def documents(self, run: str, tag: str, count: int = 1) -> list[str]:
        """The last values of a series, the last one last; empty where there is none."""
        return [document for _, document in self.dated(run, tag, count)]

    def dated(self, run: str, tag: str, count: int) -> list[tuple[float, str]]:
        """The same, each with when it was written."""
        found = self._data.read_tensors(
            self._context,
            experiment_id=self._experiment,
            plugin_name=PLUGIN_NAME,
            downsample=count,
            run_tag_filter=provider.RunTagFilter(runs=[run], tags=[tag]),
        )
        return [
            (datum.wall_time, _document(datum.numpy)) for datum in found.get(run, {}).get(tag, ())
        ]

    def scalars(self, run: str, tags: list[str]) -> dict[str, list[provider.ScalarDatum]]:
        """Series of scalars of one run, by tag."""
        found = self._data.read_scalars(
            self._context,
            experiment_id=self._experiment,
            plugin_name=PLUGIN_NAME,
            downsample=_HISTORY_POINTS,
            run_tag_filter=provider.RunTagFilter(runs=[run], tags=tags),
        )
        return dict(found.get(run, {}))

    def graph_written(self, run: str) -> float | None:
        """When the graph was written that the Graphs tab shows of a run; None without one."""
        found = self._data.list_blob_sequences(
            self._context, experiment_id=self._experiment, plugin_name=_GRAPHS
        )
        times = [float(series.max_wall_time) for series in found.get(run, {}).values()]
        return max(times, default=None)

    def plan(self) -> tuple[str, PlanRecord]:
        """The run and the plan that the request names."""
        run, tag = self.text("run"), self.text("tag")
        found = self.documents(run, tag)
        if not found:
            raise errors.NotFoundError("there is no such plan in this run")
        return run, _plan_record(found[-1])

    def measured(self, run: str, record: PlanRecord) -> TimelineRecord | None:
        """What was measured under a plan; None where nothing was, or it cannot be read."""
        # Of a plan that came into force again, the steps since then count.
        since = self.dated(run, record.tag, 1)[-1][0]
        dated = self.dated(run, record.tag_of(StepRecord.KIND), _TRACED_STEPS)
        steps = [_step_record(document) for written, document in dated if written >= since]
        same = [one for one in steps if one.plan == record.plan.fingerprint]
        return TimelineRecord.of(record.plan, same) or self._written(run, record)

    def _written(self, run: str, record: PlanRecord) -> TimelineRecord | None:
        """As a version before has computed it, whatever TensorBoard has kept of the steps."""
        found = self.documents(run, record.tag_of(TimelineRecord.KIND))
        if not found:
            return None
        measured = TimelineRecord.from_json(found[-1])
        return measured if measured.plan == record.plan.fingerprint else None


def _document(value: Any) -> str:
    """The text of a summary, which may be anything that someone has written."""
    item = value.item() if value.size == 1 else None
    if not isinstance(item, bytes):
        raise ValueError("a summary of this plugin holds one string, this one does not")
    return item.decode()


# A page asks again every few seconds while training runs.
_PLANS: Cache[PlanRecord] = Cache(64)
_STEPS: Cache[StepRecord] = Cache(1024)
_HEADINGS: Cache[dict[str, Any]] = Cache(4096)
_STAGED: Cache[dict[str, Any]] = Cache(64)


def _digest(document: str) -> bytes:
    return hashlib.blake2b(document.encode(), digest_size=16).digest()


def _plan_record(document: str) -> PlanRecord:
    return _PLANS.get(_digest(document), lambda: PlanRecord.from_json(document))


def _step_record(document: str) -> StepRecord:
    return _STEPS.get(_digest(document), lambda: StepRecord.from_json(document))


# What a page draws of a record as it is, beside the plans of data parallelism.
_CARDS: Mapping[str, Callable[[str], dict[str, Any]]] = MappingProxyType(
    {
        PipelineRecord.KIND: lambda text: views.pipeline_view(PipelineRecord.from_json(text)),
        BurstRecord.KIND: lambda text: views.burst_view(BurstRecord.from_json(text)),
        BackgroundRecord.KIND: lambda text: views.background_view(BackgroundRecord.from_json(text)),
    }
)


def _card(kind: str, document: str) -> dict[str, Any]:
    return _STAGED.get((kind, _digest(document)), lambda: _CARDS[kind](document))


def _runs(query: Query) -> Any:
    """All plans, by run; functions that have none yet; and what cannot be read, with the reason.

    Pipelines, bursts and background jobs are there with all that is shown of them.

    `stamps` are by run what changes whenever anything is written there.
    """
    plans: list[dict[str, Any]] = []
    cards: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _CARDS}
    problems: list[dict[str, str]] = []
    for run, tags in sorted(query.listed().items()):
        for tag, series in sorted(tags.items()):
            try:
                kind = kinds.kind_of(series.plugin_content)
                if kind in _CARDS:
                    shown = [_card(kind, text) for text in query.documents(run, tag)]
                    cards[kind] += [{"run": run, "job": job_of(run)} | one for one in shown]
                if kind == PlanRecord.KIND:
                    plans += _in_force(query, run, tag)
            except ValueError as error:
                problems.append({"run": run, "tag": tag, "message": str(error)})
    headings = _in_order(plans)
    scalars = query.listed_scalars()
    stamps: dict[str, float] = {}
    for listed in (query.listed(), scalars):
        for run, tags in listed.items():
            latest = max((series.max_wall_time for series in tags.values()), default=0.0)
            stamps[run] = max(stamps.get(run, 0.0), latest)
    return {
        "plans": headings,
        "pipelines": cards[PipelineRecord.KIND],
        "bursts": cards[BurstRecord.KIND],
        "backgrounds": cards[BackgroundRecord.KIND],
        "measuring": _measuring(query, scalars, headings),
        "stamps": stamps,
        "problems": problems,
    }


def _in_force(query: Query, run: str, tag: str) -> list[dict[str, Any]]:
    """What there is to know of a plan, for each time that it came into force."""
    return [
        {"run": run, "tag": tag} | _heading(document) | {"written": written}
        for written, document in query.dated(run, tag, _PLAN_POINTS)
    ]


def _in_order(plans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of one function in the order in which they came into force, over all jobs of a run."""
    return sorted(plans, key=lambda one: (one["run"], one["function"], one["written"]))


def _plans_of(query: Query, run: str) -> list[dict[str, Any]]:
    """The plans of one run; what cannot be read is listed by `_runs`."""
    plans: list[dict[str, Any]] = []
    for tag, series in query.listed().get(run, {}).items():
        with contextlib.suppress(ValueError):
            if kinds.kind_of(series.plugin_content) == PlanRecord.KIND:
                plans += _in_force(query, run, tag)
    return _in_order(plans)


def _measuring(
    query: Query,
    listed: Mapping[str, Mapping[str, provider.ScalarTimeSeries]],
    plans: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Functions that have run steps and no plan yet: which step they are at, of how many."""
    planned = {(plan["run"], plan["function"]) for plan in plans}
    found = []
    for run, tags in sorted(listed.items()):
        for tag in sorted(tags):
            function, _, name = tag.rpartition("/")
            if name != history.MAX_TUNING_STEPS or (run, function) in planned:
                continue
            points = query.scalars(run, [tag]).get(tag, [])
            steps = [
                tags[one].max_step
                for one in (f"{function}/{series}" for series in history.HISTORY)
                if one in tags
            ]
            most = int(points[-1].value) if points else 0
            found.append(
                {"run": run, "function": function, "step": max(steps, default=0), "most": most}
            )
    return found


def _heading(document: str) -> dict[str, Any]:
    return _HEADINGS.get(_digest(document), lambda: _heading_of(_plan_record(document)))


def _heading_of(record: PlanRecord) -> dict[str, Any]:
    return {
        "function": record.function,
        "step": record.step,
        "origin": record.origin,
        "strategy": record.plan.strategy,
        "fingerprint": record.plan.fingerprint,
        "num_groups": len(record.plan.groups),
        "num_tensors": len(record.plan.tensor_names),
        "num_workers": record.plan.num_workers,
    }


def _plan(query: Query) -> Any:
    run, record = query.plan()
    named = sorted({step.host for step in _steps(query, run, record, count=1) if step.host})
    return views.plan_view(record, named) | {"has_graph": _has_graph(query, run, record)}


def _has_graph(query: Query, run: str, record: PlanRecord) -> bool:
    """Whether the graph that the Graphs tab shows of the run is that of this plan.

    Of one run it shows the last: that of the plan that came into force before it was written.
    """
    graph = query.graph_written(run)
    if graph is None:
        return False
    plans = [one for one in _plans_of(query, run) if one["written"] <= graph]
    last = max(plans, key=lambda one: float(one["written"]), default=None)
    return last is not None and bool(last["tag"] == record.tag)


def _group(query: Query) -> Any:
    _, record = query.plan()
    return views.group_view(record, query.integer("group", 0, len(record.plan.groups) - 1))


def _timeline(query: Query) -> Any:
    """`show`: "measured", "predicted", or the name of a strategy, then with `threads`."""
    run, record = query.plan()
    show = query.text("show")
    if show == "predicted":
        return views.predicted_timeline(record)
    if show == "measured":
        measured = query.measured(run, record)
        return None if measured is None else views.measured_timeline(record, measured)
    if show not in strategies.BY_NAME:
        allowed = ", ".join(("predicted", "measured", *strategies.BY_NAME))
        raise ValueError(f"show must be one of {allowed}, got {show!r:.80}")
    threads = query.integer("threads", 1, checks.MAX_INT32) if query.has("threads") else None
    return views.predicted_timeline(record, views.strategy_like(record, show, threads))


def _ranks(query: Query) -> Any:
    """One step as all ranks had it; `step` chooses which of those that were kept."""
    run, record = query.plan()
    same = _steps(query, run, record, _TRACED_STEPS)
    wanted = query.integer("step", 0, checks.MAX_INT64) if query.has("step") else None
    return ranks.ranks_view(record, same, wanted)


def _steps(query: Query, run: str, record: PlanRecord, count: int) -> list[StepRecord]:
    """The last steps of every rank of a run's job under a plan."""
    tag = record.tag_of(StepRecord.KIND)
    steps: list[StepRecord] = []
    for other, tags in sorted(query.listed().items()):
        if tag in tags and job_of(other) == job_of(run):
            documents = query.documents(other, tag, count)
            steps += [_step_record(document) for document in documents]
    return [one for one in steps if one.plan == record.plan.fingerprint]


def job_of(run: str) -> str:
    """The folder of a job, of which every rank's run is one below."""
    return run.rpartition("/")[0] if _RANK.search(run) else run


def _contention(query: Query) -> Any:
    return views.contention_view(query.plan()[1])


def _strategies(query: Query) -> Any:
    """All of them, or that named by `strategy`; on the plan's workers, or on `workers`."""
    _, record = query.plan()
    workers = None
    if query.has("workers"):
        workers = query.integer("workers", 2, max(views.SCALE_OUT))
        if workers not in views.SCALE_OUT:
            allowed = ", ".join(map(str, views.SCALE_OUT))
            raise ValueError(f"workers must be one of {allowed}, got {workers}")
    name = query.text("strategy") if query.has("strategy") else None
    return views.strategies_view(record, workers, name)


def _measured_steps(query: Query) -> Any:
    """Whole steps as measured, under this plan and others."""
    run, record = query.plan()
    return views.steps_view(record, run, _measured_runs(query))


def _measured_runs(query: Query) -> list[views.MeasuredRun]:
    """Everything that was measured in the experiment; what cannot be read is listed by `_runs`."""
    found = []
    headings = _runs(query)["plans"]
    for index, heading in enumerate(headings):
        run, tag = heading["run"], heading["tag"]
        documents = query.documents(run, tag)
        record = _plan_record(documents[-1])
        if record.step != heading["step"]:
            continue  # the same plan earlier: its steps count with the later one
        later = [
            one["step"]
            for one in headings[index + 1 :]
            if (one["run"], one["function"]) == (run, record.function)
            if one["step"] > record.step
        ]
        seconds = _usual_steps(query, run, record, min(later, default=None))
        found.append(views.MeasuredRun(run, record, seconds, query.measured(run, record)))
    return found


def _usual_steps(
    query: Query, run: str, record: PlanRecord, until: int | None
) -> tuple[float, ...]:
    """Steps under the plan, which another replaced at step `until`; None: it is in force."""
    tag = f"{record.function}/{history.STEP_SECONDS}"
    points = query.scalars(run, [tag]).get(tag, [])
    return tuple(
        point.value
        for point in points
        if point.step > record.step and (until is None or point.step < until)
    )


def _history(query: Query) -> Any:
    """Series of the plan's training function in its run, and the plans that came into force."""
    run, record = query.plan()
    tags = {name: f"{record.function}/{name}" for name in history.HISTORY}
    found = query.scalars(run, list(tags.values()))
    plans = [one for one in _plans_of(query, run) if one["function"] == record.function]
    series = {
        name: [[point.step, point.value] for point in found.get(tag, ())]
        for name, tag in tags.items()
    }
    for plan in plans:
        same = _plan_record(query.documents(run, plan["tag"])[-1])
        timeline = views.predicted(same)
        plan["predicted_seconds"] = (
            same.plan.predicted_seconds if timeline is None else timeline.backward_seconds
        )
    return {
        "plans": plans,
        "series": series,
        "errors": _errors(plans, series),
        "drifts": _drifts(series),
    }


def _drifts(series: dict[str, list[list[float]]]) -> list[dict[str, Any]]:
    """Where steps left what was expected of them, and where they were back."""
    expected = {point[0]: point[1] for point in series[history.EXPECTED_STEP_SECONDS]}
    return sorted(
        (
            {
                "step": step,
                "measured_seconds": seconds,
                "expected_seconds": expected[step],
                "is_back": name == history.RETURNED_STEP_SECONDS,
            }
            for name in (history.DRIFTED_STEP_SECONDS, history.RETURNED_STEP_SECONDS)
            for step, seconds in series[name]
            if step in expected
        ),
        key=lambda drift: drift["step"],
    )


def _errors(plans: list[dict[str, Any]], series: dict[str, list[list[float]]]) -> list[list[float]]:
    """Relative errors of predicted backward time: [step, predicted / measured - 1]."""
    found = []
    for step, seconds in series[history.BACKWARD_SECONDS]:
        before = [plan for plan in plans if plan["step"] <= step]
        predicted = before[-1]["predicted_seconds"] if before else None
        if predicted is not None and seconds > 0:
            found.append([step, predicted / seconds - 1])
    return found


ROUTES: Mapping[str, Callable[[Query], Any]] = MappingProxyType(
    {
        "runs": _runs,
        "plan": _plan,
        "group": _group,
        "timeline": _timeline,
        "ranks": _ranks,
        "contention": _contention,
        "strategies": _strategies,
        "steps": _measured_steps,
        "history": _history,
    }
)
