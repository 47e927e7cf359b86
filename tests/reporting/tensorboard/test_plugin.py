"""The backend's routes, over TensorBoard's own data provider in this process."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from werkzeug.test import Client

from tests.reporting.tensorboard import examples
from tests.reporting.tensorboard.conftest import HOSTILE_RUN, write
from tf_libra import strategies
from tf_libra.autotune.search.result import START, Search
from tf_libra.autotune.trial_comparison import Candidate, Race
from tf_libra.cost_model import prediction_errors
from tf_libra.planning import make_plan
from tf_libra.planning.data_parallel.aiacc import CommConfig
from tf_libra.planning.explain import explain
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.event_writer import RecordWriter
from tf_libra.reporting.tensorboard import routes
from tf_libra.reporting.tensorboard.loader import LibraLoader
from tf_libra.reporting.tensorboard.plugin import DataProviderSource

RECORD = examples.plan_record()
RUN = "first/rank_0"


class Backend:
    """Plugin on a log directory."""

    def __init__(self, logdir: Path) -> None:
        multiplexer = EventMultiplexer(tensor_size_guidance={"libra": 1000})
        multiplexer.AddRunsFromDirectory(str(logdir))
        multiplexer.Reload()
        data = MultiplexerDataProvider(multiplexer, str(logdir))
        self.plugin = LibraLoader().load(base_plugin.TBContext(data_provider=data))
        self._apps = self.plugin.get_plugin_apps()

    def get(self, route: str, **parameters: Any) -> tuple[int, Any]:
        """Returns status and answer of a route."""
        response = Client(self._apps[f"/{route}"]).get("/", query_string=parameters)
        return response.status_code, json.loads(response.data)

    def answer(self, route: str, **parameters: Any) -> Any:
        """Returns the answer of a successful request."""
        status, value = self.get(route, **parameters)
        assert status == 200, value
        return value

    def static(self, path: str, method: str = "GET") -> Any:
        """Returns the response of the route of static files."""
        return Client(self._apps["/static/*"]).open(f"/data/plugin/libra{path}", method=method)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Backend:
    logdir = tmp_path_factory.mktemp("logdir")
    write(logdir / "first", RECORD)
    return Backend(logdir)


@pytest.fixture(scope="module")
def odd(hostile: Path) -> Backend:
    return Backend(hostile)


@pytest.fixture
def plan() -> dict[str, str]:
    return {"run": RUN, "tag": RECORD.tag}


def test_runs_lists_plans_by_run(backend: Backend) -> None:
    listed = backend.answer("runs")
    assert listed["problems"] == []
    [heading] = listed["plans"]
    assert heading["run"] == RUN
    assert heading["fingerprint"] == RECORD.plan.fingerprint
    assert (heading["step"], heading["strategy"]) == (61, "libra")


def test_plan_view_equals_explain(backend: Backend, plan: dict[str, str]) -> None:
    view = backend.answer("plan", **plan)
    reported = explain(RECORD.conclusion.profile, RECORD.plan, RECORD.conclusion.cost_model)
    assert view["summary"] == reported.summary
    assert view["predicted_seconds"] == reported.timeline.backward_seconds
    for row, one in zip(view["groups"], reported.groups, strict=True):
        assert (row["start"], row["stop"]) == (one.group.start, one.group.stop)
        assert row["num_bytes"] == one.num_bytes
        assert (row["start_seconds"], row["end_seconds"]) == (
            one.span.start_seconds,
            one.span.end_seconds,
        )
    totals = view["totals"]
    parts = totals["slowed_seconds"] + totals["residual_communication_seconds"]
    assert view["compute_seconds"] + parts == pytest.approx(totals["backward_seconds"])


@pytest.mark.parametrize("index", range(len(RECORD.plan.groups)))
def test_group_view_equals_explain(backend: Backend, plan: dict[str, str], index: int) -> None:
    view = backend.answer("group", **plan, group=index)
    conclusion = RECORD.conclusion
    reported = explain(
        conclusion.profile, RECORD.plan, conclusion.cost_model, conclusion.evidence
    ).groups[index]
    assert view["names"] == list(
        RECORD.plan.tensor_names[reported.group.start : reported.group.stop]
    )
    assert view["why"]["threads"] == reported.threads
    assert [(one["change"], one["seconds"]) for one in view["why"]["alternatives"]] == [
        (alternative.change, alternative.seconds) for alternative in reported.alternatives
    ]


def test_bottleneck_is_the_group_of_largest_cost(backend: Backend, plan: dict[str, str]) -> None:
    view = backend.answer("plan", **plan)
    lost = [one["residual_communication_seconds"] + one["slowed_seconds"] for one in view["groups"]]
    assert lost[view["bottleneck"]] == max(lost)


def test_plan_view_has_trials(backend: Backend, plan: dict[str, str], tmp_path: Path) -> None:
    assert backend.answer("plan", **plan)["race"] is None
    other = make_plan(
        RECORD.conclusion.profile, RECORD.conclusion.cost_model, strategies.SynEasgd()
    )
    seconds = [(0.050, 0.051, 0.050, 0.051) * 2, (0.060, 0.061, 0.060, 0.061) * 2, ()]
    race = Race(
        (
            Candidate(RECORD.plan, 0.048, seconds[0]),
            Candidate(other, None, seconds[1]),
            Candidate(other, 0.07, seconds[2]),
        )
    )
    raced = replace(RECORD, conclusion=replace(RECORD.conclusion, race=race))
    write(tmp_path / "first", raced)
    won, lost, never = Backend(tmp_path).answer("plan", **plan)["race"]
    assert won["fingerprint"] == RECORD.plan.fingerprint
    assert won["seconds"] == pytest.approx(0.0505)
    assert 1 < lost["low"] < lost["ratio"] < lost["high"]
    assert (won["num_rounds"], won["predicted_seconds"], won["ratio"]) == (8, 0.048, None)
    assert lost["ratio"] == pytest.approx(1.2, rel=0.02)
    assert not lost["is_noise"]
    assert (lost["num_groups"], lost["predicted_seconds"]) == (1, None)
    assert (never["seconds"], never["ratio"]) == (None, None)


def test_steps_view_compares_trials_only(plan: dict[str, str], tmp_path: Path) -> None:
    other = make_plan(RECORD.conclusion.profile, RECORD.conclusion.cost_model, strategies.Wfbp())
    race = Race(
        (
            Candidate(RECORD.plan, 0.048, (0.050, 0.052, 0.049, 0.051)),
            Candidate(other, None, (0.051, 0.050, 0.050, 0.0505)),
        )
    )
    raced = replace(RECORD, conclusion=replace(RECORD.conclusion, race=race))
    write(tmp_path / "first", raced)
    write(tmp_path / "second", RECORD)
    backend = Backend(tmp_path)
    steps = backend.answer("steps", **plan)
    assert steps["race"] == backend.answer("plan", **plan)["race"]
    won, beside = steps["race"]
    assert (won["strategy"], won["num_rounds"]) == ("libra", 4)
    assert (beside["strategy"], beside["is_noise"]) == ("wfbp", True)
    assert [(one["run"], one["is_own"]) for one in steps["measured"]] == [
        (RUN, True), ("second/rank_0", False),
    ]  # fmt: skip


def test_steps_belong_to_the_plan_active_at_their_time(tmp_path: Path) -> None:
    later = examples.plan_record(strategy=strategies.Wfbp(), step=70)
    write(tmp_path / "first", RECORD)  # writes steps 1 to 80
    writer = RecordWriter(tmp_path / "first", 0)
    writer.record(later.step, later)
    writer.close()
    steps = Backend(tmp_path).answer("steps", run=RUN, tag=RECORD.tag)
    assert [(one["strategy"], one["num_steps"]) for one in steps["measured"]] == [
        ("libra", 8), ("wfbp", 10),
    ]  # fmt: skip


def test_plan_view_has_the_search(backend: Backend, plan: dict[str, str], tmp_path: Path) -> None:
    assert backend.answer("plan", **plan)["search"] is None
    found = Search().with_trial(START, CommConfig(2**20, 1, 1), 0.05)
    found = found.with_trial("grid", CommConfig(2**18, 2, 1), 0.04)
    found = found.with_trial("grid", CommConfig(2**16, 4, 1), 0.06)
    searched = replace(RECORD, conclusion=replace(RECORD.conclusion, search=found))
    write(tmp_path / "first", searched)
    view = Backend(tmp_path).answer("plan", **plan)["search"]
    assert view["best"] == {"unit_bytes": 2**18, "num_streams": 2, "num_threads": 1}
    assert view["searchers"] == [{"name": "grid", "num_steps": 2, "new_bests": 1}]
    assert [one["searcher"] for one in view["trials"]] == ["start", "grid", "grid"]
    assert [one["found_best"] for one in view["trials"]] == [True, True, False]
    assert [one["seconds"] for one in view["trials"]] == [0.05, 0.04, 0.06]


def test_timelines(backend: Backend, plan: dict[str, str]) -> None:
    predicted = backend.answer("timeline", **plan, show="predicted")
    measured = backend.answer("timeline", **plan, show="measured")
    record = examples.timeline_record(RECORD)
    assert predicted["backward"]["median"] == RECORD.plan.predicted_seconds
    assert measured["backward"]["median"] == record.backward.median
    assert measured["num_steps"] == record.num_steps
    assert [span["group"] for span in measured["spans"]] == [span.group for span in record.spans]
    wfbp = backend.answer("timeline", **plan, show="wfbp", threads=2)
    assert len(wfbp["spans"]) == len(RECORD.plan.tensor_names)
    assert {span["num_threads"] for span in wfbp["spans"]} == {2}
    pieces = predicted["computation"]
    assert [piece["to"] for piece in pieces[:-1]] == [piece["from"] for piece in pieces[1:]]
    done = sum((piece["to"] - piece["from"]) * piece["rate"] for piece in pieces)
    assert done == pytest.approx(RECORD.conclusion.profile.compute_seconds.sum())


def test_every_strategy_has_a_prediction(backend: Backend, plan: dict[str, str]) -> None:
    view = backend.answer("strategies", **plan)
    rows = {(row["strategy"], row["num_threads"]): row for row in view["rows"]}
    fixed = {"syneasgd", "wfbp", "horovod-fusion", "mg-wfbp", "asc-wfbp"}
    assert rows.keys() == {(name, r) for name in fixed for r in (1, 2, 4)} | {
        ("libra", None),
        ("libra-m", None),
        ("aiacc", None),
        ("mg-cf", None),
    }
    assert rows["libra", None]["fingerprint"] == RECORD.plan.fingerprint
    assert rows["libra", None]["backward_seconds"] == RECORD.plan.predicted_seconds
    names = [one["name"] for one in backend.answer("plan", **plan)["strategies"]]
    parts = [backend.answer("strategies", **plan, strategy=name)["rows"] for name in names]
    assert [row for part in parts for row in part] == view["rows"]
    steps = backend.answer("steps", **plan)
    # Steps before the plan ran at another time: they are compared with no plan.
    [now] = steps["measured"]
    assert (now["run"], now["is_own"], now["num_steps"]) == (RUN, True, 19)
    assert steps["race"] is None  # nothing was run in turns
    # Steps 62 to 80 took 0.05 + 1e-4 times their number, that is 0.0571 in the median.
    rest = 0.0571 - RECORD.plan.predicted_seconds
    assert steps["rest_seconds"] == (pytest.approx(rest, abs=1e-6) if rest > 0 else None)
    larger = backend.answer("strategies", **plan, workers=64)
    assert larger["num_workers"] == 64
    assert [row["strategy"] for row in larger["rows"]] == [r["strategy"] for r in view["rows"]]


def test_contention_has_samples_curves_and_errors(backend: Backend, plan: dict[str, str]) -> None:
    view = backend.answer("contention", **plan)
    assert view["held_out_error"] == RECORD.conclusion.held_out_error
    assert view["held_out_backward_error"] == RECORD.conclusion.held_out_backward_error
    assert view["is_accurate"] == RECORD.conclusion.evidence.is_accurate
    model, samples = RECORD.conclusion.cost_model, RECORD.conclusion.samples
    errors = [abs(one["error"]) for one in view["samples"]]
    assert errors == pytest.approx(np.abs(prediction_errors(model, samples)))
    assert view["median_error"] == pytest.approx(np.median(errors))
    time = sum(sample.wall_seconds for sample in samples)
    for sign in (1, -1):  # half of the time is missed by no more, and half by no less
        missed = [sign * error <= sign * view["weighted_error"] for error in errors]
        assert sum(s.wall_seconds for s, m in zip(samples, missed, strict=True) if m) >= time / 2
    for one in view["at_threads"]:
        assert one["slowdown"] == pytest.approx(1 / float(model.compute_rate(one["num_threads"])))
    assert view["curves"]["num_threads"][-1] == 4


def test_history_has_steps_plans_and_prediction_errors(
    backend: Backend, plan: dict[str, str]
) -> None:
    view = backend.answer("history", **plan)
    assert [step for step, _ in view["series"]["step_seconds"]] == list(range(1, 81))
    [[step, error]] = view["errors"]
    assert step == 64
    assert error == pytest.approx(RECORD.plan.predicted_seconds / 0.04 - 1)
    assert [one["step"] for one in view["plans"]] == [61]
    assert [(one["step"], one["is_back"]) for one in view["drifts"]] == [(66, False), (70, True)]
    assert view["drifts"][0]["measured_seconds"] == pytest.approx(0.2)
    assert view["drifts"][0]["expected_seconds"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("route", "parameters", "reason"),
    [
        ("plan", {}, "run must be given once, got 0"),
        ("plan", {"run": RUN}, "tag must be given once, got 0"),
        ("plan", {"run": [RUN, RUN], "tag": "x"}, "run must be given once, got 2"),
        ("plan", {"run": "x" * 70_000, "tag": "x"}, "run must have at most"),
        ("group", {"run": RUN, "tag": RECORD.tag}, "group must be given once"),
        ("group", {"run": RUN, "tag": RECORD.tag, "group": "-1"}, "group must be an integer"),
        ("group", {"run": RUN, "tag": RECORD.tag, "group": "99"}, "group must be from 0 to"),
        ("group", {"run": RUN, "tag": RECORD.tag, "group": "9" * 90}, "group must be an integer"),
        ("group", {"run": RUN, "tag": RECORD.tag, "group": "٣"}, "group must be an integer"),
        ("timeline", {"run": RUN, "tag": RECORD.tag, "show": "all"}, "show must be one of"),
        (
            "timeline",
            {"run": RUN, "tag": RECORD.tag, "show": "wfbp", "threads": 3},
            "threads must be one of 1, 2, 4",
        ),
        ("strategies", {"run": RUN, "tag": RECORD.tag, "workers": 3}, "workers must be one of"),
        ("strategies", {"run": RUN, "tag": RECORD.tag, "workers": 4096}, "workers must be one of"),
        ("strategies", {"run": RUN, "tag": RECORD.tag, "strategy": "sgd"}, "strategy must be one"),
        ("plan", {"run": RUN, "tag": RECORD.tag.replace("plan", "step")}, "format must be"),
    ],
)
def test_bad_parameters_are_errors_with_a_reason(
    backend: Backend, route: str, parameters: dict[str, Any], reason: str
) -> None:
    status, value = backend.get(route, **parameters)
    assert status == 400
    assert reason in value["error"]


@pytest.mark.parametrize(
    "route", ["plan", "group", "timeline", "contention", "strategies", "steps"]
)
@pytest.mark.parametrize("name", [*examples.HOSTILE, "/etc/passwd", ".", "", "\0"])
def test_names_cannot_reach_other_files(backend: Backend, route: str, name: str) -> None:
    for parameters in ({"run": name, "tag": RECORD.tag}, {"run": RUN, "tag": name}):
        status, value = backend.get(route, **parameters, group=0, show="predicted")
        assert status == 404
        assert value == {"error": value["error"]}
        assert "no such plan" in value["error"]


def test_only_get_is_supported(backend: Backend) -> None:
    app = backend.plugin.get_plugin_apps()["/runs"]
    assert Client(app).post("/").status_code == 405


@pytest.mark.parametrize("name", ["index.js", "style.css", "plotly.min.js"])
def test_static_files(backend: Backend, name: str) -> None:
    response = backend.static(f"/static/{name}")
    assert response.status_code == 200
    assert response.mimetype in ("text/javascript", "application/javascript", "text/css")


@pytest.mark.parametrize(
    "path",
    [
        "/static/",
        "/static/../plugin.py",
        "/static/..%2fplugin.py",
        "/static//etc/passwd",
        "/static/%2e%2e/plugin.py",
        "/static/index.js%00",
        "/static/" + "x" * 10_000,
    ],
)
def test_other_static_files_are_not_found(backend: Backend, path: str) -> None:
    assert backend.static(path).status_code == 404


def test_hostile_names_are_unchanged(odd: Backend) -> None:
    plans = [one for one in odd.answer("runs")["plans"] if one["run"] == f"{HOSTILE_RUN}/rank_0"]
    assert sorted(one["function"] for one in plans) == sorted(examples.HOSTILE)
    for one in plans:
        view = odd.answer("plan", run=one["run"], tag=one["tag"])
        assert view["function"] == one["function"]
        names = odd.answer("group", run=one["run"], tag=one["tag"], group=0)["names"]
        assert names[0] == examples.HOSTILE[0]


def test_unreadable_summaries_are_listed_with_reasons(odd: Backend) -> None:
    problems = {one["tag"]: one["message"] for one in odd.answer("runs")["problems"]}
    assert problems.keys() == {"future", "newer document", "cut", "no text", "no json"}
    assert "version of tf-libra summary must be 1, got 2" in problems["future"]
    assert "version of tf-libra plan record must be 1, got 7" in problems["newer document"]
    assert "not valid JSON" in problems["cut"]
    for tag in problems:
        status, value = odd.get("plan", run="broken", tag=tag)
        assert (status, bool(value["error"])) == (400, True)


def test_empty_log_directory_has_no_runs(tmp_path: Path) -> None:
    backend = Backend(tmp_path)
    known = backend.answer("runs")
    assert [one["name"] for one in known.pop("strategies")] == list(strategies.BY_NAME)
    assert known == {
        "plans": [],
        "pipelines": [],
        "bursts": [],
        "backgrounds": [],
        "measuring": [],
        "stamps": {},
        "problems": [],
    }
    assert backend.plugin.is_active()


def test_runs_list_pipelines(tmp_path: Path) -> None:
    record = examples.pipeline_record(names=examples.HOSTILE[:1])
    _write_alone(tmp_path, record)
    listed = Backend(tmp_path).answer("runs")
    assert (listed["plans"], listed["problems"]) == ([], [])
    [shown] = listed["pipelines"]
    assert shown["run"] == "rank_0"
    assert (shown["function"], shown["strategy"]) == ("train_step", "spp")
    assert [stage["ranks"] for stage in shown["stages"]] == [
        list(stage.devices) for stage in record.plan.stages
    ]
    predicted, measured = shown["charts"]
    assert (predicted["title"], measured["title"]) == ("predicted", "measured")
    assert predicted["seconds"] == pytest.approx(record.plan.predicted_seconds)
    assert measured["seconds"] == record.seconds
    assert len(measured["bars"]) == len(record.bars)
    for chart in (predicted, measured):
        for row in chart["ranks"]:
            assert 0 < row["idle_share"] < 1
            assert row["longest"]["seconds"] > 0
    assert shown["bottleneck"].startswith("the bottleneck is stage")


def test_runs_list_bursts_and_background_jobs(tmp_path: Path) -> None:
    record = examples.burst_record(names=examples.HOSTILE[:1])
    _write_alone(tmp_path, record)
    for rank in range(2):
        writer = RecordWriter(tmp_path, rank)
        writer.record(64, examples.background_record(rank))
        writer.close()
    listed = Backend(tmp_path).answer("runs")
    assert (listed["plans"], listed["problems"]) == ([], [])
    [shown] = listed["bursts"]
    counts = [layer["num_devices"] for layer in shown["layers"]]
    assert counts == list(record.plan.num_devices) and len(set(counts)) == 2
    assert [layer["name"] for layer in shown["layers"]] == list(record.plan.layer_names)
    assert record.profile is not None
    assert [layer["measured"] for layer in shown["layers"]] == (
        record.profile.compute_seconds.tolist()
    )
    assert shown["layers"][2]["comes_in"] == pytest.approx(record.plan.transition_seconds[2])
    measured, predicted = shown["charts"]
    assert (predicted["title"], measured["title"]) == ("predicted", "measured")
    assert predicted["idle_seconds"] == pytest.approx(record.plan.idle_seconds)
    assert measured["seconds"] == record.seconds
    assert len(measured["bars"]) == len(record.bars)
    backgrounds = listed["backgrounds"]
    assert [(background["rank"], background["job"]) for background in backgrounds] == [
        (0, ""),
        (1, ""),
    ]
    assert [background["steps_per_second"] for background in backgrounds] == [200 / 8, 300 / 8]


class Noting(MultiplexerDataProvider):
    """Records the runs whose records are read."""

    def __init__(self, logdir: Path) -> None:
        multiplexer = EventMultiplexer(tensor_size_guidance={"libra": 1000})
        multiplexer.AddRunsFromDirectory(str(logdir))
        multiplexer.Reload()
        super().__init__(multiplexer, str(logdir))
        self.read: set[str] = set()

    def read_tensors(self, *args: Any, run_tag_filter: Any = None, **kwargs: Any) -> Any:
        self.read |= set(run_tag_filter.runs)
        return super().read_tensors(*args, run_tag_filter=run_tag_filter, **kwargs)


@pytest.mark.parametrize("route", ["plan", "history"])
def test_plan_views_do_not_read_other_runs(tmp_path: Path, route: str) -> None:
    for name in ("first", "second"):
        write(tmp_path / name, RECORD)
        writer = RecordWriter(tmp_path / name, 0)
        writer.graph(RECORD.step, tf.Graph().as_graph_def().SerializeToString())
        writer.close()
    data = Noting(tmp_path)
    source = DataProviderSource(data, RequestContext(), "")
    answer = routes.ROUTES[route].answer(source, RUN, RECORD.tag)
    assert answer["has_graph" if route == "plan" else "plans"]
    assert data.read == {RUN}


def test_user_provided_plan_has_no_predictions(tmp_path: Path) -> None:
    record = examples.given_record(RECORD.plan, strategies.Libra())
    _write_alone(tmp_path, record)
    backend = Backend(tmp_path)
    plan = {"run": "rank_0", "tag": record.tag}
    assert backend.answer("plan", **plan)["bottleneck"] is None
    assert backend.answer("group", **plan, group=0)["why"] is None
    assert backend.answer("timeline", **plan, show="predicted") is None
    assert backend.answer("timeline", **plan, show="measured") is None
    assert backend.answer("contention", **plan)["model"] is None
    assert backend.answer("plan", **plan)["strategies"] == []
    assert backend.answer("strategies", **plan)["rows"] == []
    assert backend.answer("history", **plan)["errors"] == []


def _write_alone(logdir: Path, record: record_types.Record) -> None:
    from tf_libra.reporting.records.event_writer import RecordWriter

    writer = RecordWriter(logdir, 0)
    writer.record(record.step, record)
    writer.close()
