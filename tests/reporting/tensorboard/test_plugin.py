"""The views of a plan that the backend's routes answer, over TensorBoard's own data provider."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext

from tests.reporting.tensorboard import examples
from tests.reporting.tensorboard.conftest import write
from tests.reporting.tensorboard.plugin_backend import RECORD, RUN, Backend, write_alone
from tf_libra import strategies
from tf_libra.autotune.search.result import START, Search
from tf_libra.autotune.trial_comparison import Candidate, Race
from tf_libra.cost_model import prediction_errors
from tf_libra.planning import make_plan
from tf_libra.planning.data_parallel.aiacc import CommConfig
from tf_libra.planning.explain import explain
from tf_libra.reporting.records.event_writer import RecordWriter
from tf_libra.reporting.tensorboard import routes
from tf_libra.reporting.tensorboard.plugin import DataProviderSource


def test_plan_view_equals_explain(backend: Backend, plan: dict[str, str]) -> None:
    view = backend.answer("plan", **plan)
    reported = explain(RECORD.conclusion.profile, RECORD.plan, RECORD.conclusion.cost_model)
    assert view["summary"] == reported.summary
    assert view["predicted_seconds"] == reported.timeline.backward_seconds
    for row, group in zip(view["groups"], reported.groups, strict=True):
        assert (row["start"], row["stop"]) == (group.group.start, group.group.stop)
        assert row["num_bytes"] == group.num_bytes
        assert (row["start_seconds"], row["end_seconds"]) == (
            group.span.start_seconds,
            group.span.end_seconds,
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
    assert [
        (alternative["change"], alternative["seconds"])
        for alternative in view["why"]["alternatives"]
    ] == [(alternative.change, alternative.seconds) for alternative in reported.alternatives]


def test_bottleneck_is_the_group_of_largest_cost(backend: Backend, plan: dict[str, str]) -> None:
    view = backend.answer("plan", **plan)
    lost = [
        group["residual_communication_seconds"] + group["slowed_seconds"]
        for group in view["groups"]
    ]
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
    assert (lost["groups"], lost["predicted_seconds"]) == ("1 group", None)
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
    won, other = steps["race"]
    assert (won["strategy"], won["num_rounds"]) == ("libra", 4)
    assert (other["strategy"], other["is_noise"]) == ("wfbp", True)
    assert [(measured["run"], measured["is_own"]) for measured in steps["measured"]] == [
        (RUN, True), ("second/rank_0", False),
    ]  # fmt: skip


def test_steps_belong_to_the_plan_active_at_their_time(tmp_path: Path) -> None:
    later = examples.plan_record(strategy=strategies.Wfbp(), step=70)
    write(tmp_path / "first", RECORD)  # writes steps 1 to 80
    writer = RecordWriter(tmp_path / "first", 0)
    writer.record(later.step, later)
    writer.close()
    steps = Backend(tmp_path).answer("steps", run=RUN, tag=RECORD.tag)
    assert [(measured["strategy"], measured["num_steps"]) for measured in steps["measured"]] == [
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
    assert [trial["searcher"] for trial in view["trials"]] == ["start", "grid", "grid"]
    assert [trial["found_best"] for trial in view["trials"]] == [True, True, False]
    assert [trial["seconds"] for trial in view["trials"]] == [0.05, 0.04, 0.06]


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
    fixed = {"syneasgd", "wfbp", "horovod-fusion", "mg-wfbp", "asc-wfbp", "dear"}
    assert rows.keys() == {(name, r) for name in fixed for r in (1, 2, 4)} | {
        ("libra", None),
        ("libra-m", None),
        ("aiacc", None),
        ("mg-cf", None),
    }
    assert rows["libra", None]["fingerprint"] == RECORD.plan.fingerprint
    assert rows["libra", None]["backward_seconds"] == RECORD.plan.predicted_seconds
    names = [strategy["name"] for strategy in backend.answer("plan", **plan)["strategies"]]
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
    errors = [abs(sample["error"]) for sample in view["samples"]]
    assert errors == pytest.approx(np.abs(prediction_errors(model, samples)))
    assert view["median_error"] == RECORD.conclusion.median_error
    time = sum(sample.wall_seconds for sample in samples)
    for sign in (1, -1):  # half of the time is missed by no more, and half by no less
        missed = [sign * error <= sign * view["weighted_error"] for error in errors]
        assert sum(s.wall_seconds for s, m in zip(samples, missed, strict=True) if m) >= time / 2
    for rates in view["at_threads"]:
        assert rates["slowdown"] == pytest.approx(
            1 / float(model.compute_rate(rates["num_threads"]))
        )
    assert view["curves"]["num_threads"][-1] == 4


def test_history_has_steps_plans_and_prediction_errors(
    backend: Backend, plan: dict[str, str]
) -> None:
    view = backend.answer("history", **plan)
    assert [step for step, _ in view["series"]["step_seconds"]] == list(range(1, 81))
    [[step, error]] = view["errors"]
    assert step == 64
    assert error == pytest.approx(RECORD.plan.predicted_seconds / 0.04 - 1)
    assert [entry["step"] for entry in view["plans"]] == [61]
    assert [(drift["step"], drift["is_back"]) for drift in view["drifts"]] == [
        (66, False),
        (70, True),
    ]
    assert view["drifts"][0]["measured_seconds"] == pytest.approx(0.2)
    assert view["drifts"][0]["expected_seconds"] == pytest.approx(0.05)


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
    write_alone(tmp_path, record)
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
