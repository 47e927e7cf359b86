"""HTML reports, their content and their views in a browser without a network."""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from selenium.webdriver.support.select import Select

from tests.reporting.tensorboard import examples
from tf_libra import strategies
from tf_libra.autotune import TuningResult
from tf_libra.autotune.trial_comparison import Candidate, Race
from tf_libra.cli import main
from tf_libra.internal import formatting
from tf_libra.planning import explain, make_plan
from tf_libra.reporting.records.event_writer import RecordWriter
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.report.figures import draw_figures
from tf_libra.reporting.report.logdir_source import Answers, collect_answers
from tf_libra.specs.plan import Plan
from tools.tensorboard_tab import VIEWS, Tab

MADE = examples.plan_record(names=examples.HOSTILE)
assert MADE.conclusion.profile is not None
assert MADE.conclusion.cost_model is not None
OTHER = make_plan(MADE.conclusion.profile, MADE.conclusion.cost_model, strategies.Wfbp())
# Trials of two plans without a significant difference.
RACE = Race(
    (
        Candidate(MADE.plan, 0.048, (0.050, 0.052, 0.049, 0.051)),
        Candidate(OTHER, None, (0.051, 0.050, 0.050, 0.0505)),
    )
)
RECORD = replace(MADE, conclusion=replace(MADE.conclusion, race=RACE, max_model_error=0.05))


def written(logdir: Path, record: PlanRecord = RECORD) -> Path:
    """Writes a log directory with a plan, traced steps and step times."""
    writer = RecordWriter(logdir, 0)
    writer.record(record.step, record)
    for traced_step in examples.traced_steps(record):
        writer.record(traced_step.step, traced_step)
    for step in range(1, record.step + 20):
        writer.history(step, record.function, {"step_seconds": 0.05 + 1e-4 * step})
    writer.close()
    return logdir


def traced(logdir: Path, function: str) -> None:
    """Adds a plan without a model, whose only figure is the measured timeline."""
    record = replace(RECORD, function=function)
    writer = RecordWriter(logdir, 0)
    writer.record(record.step, replace(record, conclusion=TuningResult(record.plan)))
    for traced_step in examples.traced_steps(record):
        writer.record(traced_step.step, traced_step)
    writer.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    logdir = written(folder / "<run> & 'quotes'")
    writer = RecordWriter(logdir, 0)
    writer.record(12, examples.burst_record("other_step", names=examples.HOSTILE[:1]))
    writer.record(90, examples.family_record(examples.HOSTILE[0]))
    writer.close()
    assert main(["report", str(logdir), "--out", str(folder / "report.html")]) == 0
    return folder / "report.html"


def answers(report: Path) -> dict[str, Any]:
    """Returns the answer to each route's first question."""
    found = re.search(r'id="answers">(.*?)</script>', report.read_text(), re.DOTALL)
    assert found is not None
    by_route: dict[str, Any] = {}
    for route, _, answer in json.loads(found[1]):
        by_route.setdefault(route, answer["value"])
    return by_route


def test_numbers_are_those_of_the_plan_and_its_explanation(report: Path) -> None:
    shown = answers(report)["plan"]
    plan = Plan.from_json(RECORD.plan.to_json())
    assert shown["fingerprint"] == plan.fingerprint
    assert shown["predicted_seconds"] == plan.predicted_seconds
    assert [(g["start"], g["stop"], g["num_threads"]) for g in shown["groups"]] == [
        (g.start, g.stop, g.num_threads) for g in plan.groups
    ]
    assert RECORD.conclusion.profile is not None
    assert RECORD.conclusion.cost_model is not None
    explained = explain(RECORD.conclusion.profile, plan, RECORD.conclusion.cost_model)
    assert shown["summary"] == explained.summary
    for group, other in zip(shown["groups"], explained.groups, strict=True):
        assert group["start_seconds"] == other.span.start_seconds
        assert group["end_seconds"] == other.span.end_seconds
    [first, *_] = explained.groups
    assert answers(report)["group"]["why"]["threads"] == first.threads


def test_report_needs_no_network(report: Path) -> None:
    text = report.read_text()
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert re.findall(r"(?:src|href)=[\"']?(?!data:|[\"'])[^\s>]*", outside) == []
    assert "url(" not in outside
    assert "<title>TF-Libra: &lt;run&gt; &amp; &#x27;quotes&#x27;</title>" in text


def test_hostile_names_are_escaped(report: Path) -> None:
    assert "<script>alert(1)" not in report.read_text()
    assert "\\u003cscript>alert(1)" in report.read_text()


@pytest.fixture(scope="module")
def tab(browser: Tab, report: Path) -> Tab:
    """Opens the report in a browser."""
    browser.driver.get("about:blank")
    browser.trouble()  # of what was shown before
    browser.driver.get(report.as_uri())
    browser.wait(lambda: browser.one("main").get_attribute("data-ready"))
    return browser


def test_every_view_is_drawn_offline(tab: Tab, report: Path) -> None:
    for name in VIEWS:
        tab.view(name)
    assert len(tab.find(".burst .gantt")) == 2
    first, *_ = tab.find(".card")
    assert "families" in first.get_attribute("class")
    assert "1.4 times as fast as one" in first.text
    assert len(tab.find(".families [data-family]")) == 3
    assert tab.trouble() == []
    assert tab.script("return performance.getEntriesByType('resource').map((e) => e.name)") == []


def test_only_steps_of_trials_are_compared(tab: Tab) -> None:
    tab.view("strategies")
    heads = [head.splitlines()[0] for head in tab.texts("#strategies th")]
    assert heads.index("Step, measured") < heads.index("Threads")
    own = tab.one("#strategies tr[data-strategy='libra']").text
    assert "50.5 ms, r = " in own
    assert "trials: active (4 rounds)" in own
    assert "this run (19 steps under the plan, not comparable)" in own
    other = tab.one("#strategies tr[data-strategy='wfbp']").text
    # The ratio to the active plan with its limits, and no step time that could contradict it.
    assert re.search(
        rf"%, r = .*trials: {formatting.NO_DIFFERENCE} \(.* % to .* %, 4 rounds", other
    )
    assert "before the plan" not in tab.one("#strategies").text


def test_group_is_selected(tab: Tab) -> None:
    tab.view("plan")
    tab.find("#groups tbody tr")[0].click()
    tab.wait(lambda: "Group 0" in tab.one("#detail").text)
    names = RECORD.plan.tensor_names[RECORD.plan.groups[0].start : RECORD.plan.groups[0].stop]
    assert examples.HOSTILE[0] in names
    assert examples.HOSTILE[0] in tab.one("#detail").text
    assert not tab.find("#reload")[0].is_displayed()
    assert tab.one("#caveat").text == "Predicted by a model that misses by 9.0 %:"


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_pictures(tmp_path: Path, kind: str) -> None:
    logdir = written(tmp_path / "run")
    assert main(["report", str(logdir), f"--{kind}", str(tmp_path / "pictures")]) == 0
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "pictures").iterdir()}
    views = ("timeline", "contention", "strategies", "scale_out")
    assert set(drawn) == {f"{view}.{kind}" for view in views}
    for content in drawn.values():
        assert content.startswith(b"\x89PNG" if kind == "png" else b"<?xml")
        assert len(content) > 10_000


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Returns all answers about a run."""
    return collect_answers(written(tmp_path_factory.mktemp("found")))


@pytest.mark.parametrize("sizes", [1, None], ids=["at one world size", "at all of them"])
def test_pictures_without_a_prediction_of_libra(
    tmp_path: Path, found: Answers, sizes: int | None
) -> None:
    found = copy.deepcopy(found)
    studies = [
        answer["value"]
        for route, parameters, answer in found
        if route == "strategies" and "workers" in parameters
    ]
    assert len(studies) > 1
    for study in studies[:sizes]:
        for row in study["rows"]:
            if row["strategy"] == "libra":
                row["backward_seconds"] = None
    assert draw_figures(found, tmp_path / "pictures", "svg", "run") == []
    assert (tmp_path / "pictures" / "scale_out.svg").exists()


def test_each_run_has_its_own_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runs have one function, two functions, and nothing to draw."""
    logdir, pictures = tmp_path / "runs", tmp_path / "pictures"
    written(logdir / "first")
    for function in ("train_step", "../other/step"):
        traced(logdir / "two", function)
    writer = RecordWriter(logdir / "bare", 0)
    writer.record(1, examples.given_record(RECORD.plan, RECORD.strategy))
    writer.close()
    assert main(["report", str(logdir), "--svg", str(pictures)]) == 0
    drawn = {str(path.relative_to(pictures)) for path in pictures.rglob("*timeline.svg")}
    assert drawn == {
        "first/timeline.svg", "two/train_step/timeline.svg", "two/_other_step/timeline.svg",
    }  # fmt: skip
    # Text is drawn as glyphs, each of which a comment names.
    assert "<!-- first: train_step -->" in (pictures / "first" / "timeline.svg").read_text()
    reported = capsys.readouterr().err
    assert "skipped 'bare: f': neither a fitted model nor a traced step" in reported


def test_foreign_event_file_is_reported_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "run") / "events.out.tfevents.9.other"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"\xff" * 50)
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "report.html")]) == 0
    reported = capsys.readouterr().err
    assert f"skipped {str(path)!r}: not an event file" in reported
    assert reported.count("\n") == 1


@pytest.mark.parametrize("has_other_files", [True, False])
def test_damaged_files_are_named(
    tmp_path: Path, has_other_files: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    logdir, out = tmp_path / "run", tmp_path / "report.html"
    if has_other_files:
        written(logdir)
    bad = logdir / "rank_0" / "events.out.tfevents.9.damaged"
    bad.parent.mkdir(parents=True, exist_ok=True)
    bad.write_bytes(b"\xff" * 99)
    assert main(["report", str(logdir), "--out", str(out)]) == (0 if has_other_files else 2)
    what = f"{str(bad)!r}: not an event file (a checksum is wrong)"
    assert what in capsys.readouterr().err
    if has_other_files:
        assert answers(out)["runs"]["problems"] == [
            {"file": str(bad), "message": "not an event file (a checksum is wrong)"}
        ]
    trace = tmp_path / "t.json"
    assert main(["timeline", str(logdir), "--out", str(trace)]) == (0 if has_other_files else 2)
    assert what in capsys.readouterr().err


def test_plan_without_measurements_has_a_report_and_no_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = examples.given_record(RECORD.plan, RECORD.strategy)
    writer = RecordWriter(tmp_path / "run", 0)
    writer.record(1, bare)
    writer.close()
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "run"), "--out", str(out)]) == 0
    assert answers(out)["plan"]["fingerprint"] == bare.plan.fingerprint
    assert main(["report", str(tmp_path / "run"), "--png", str(tmp_path / "p")]) == 2
    assert "nothing to draw" in capsys.readouterr().err


def missing(folder: Path) -> Path:
    return folder / "missing\nfolder"


def empty(folder: Path) -> Path:
    return folder


def damaged(folder: Path) -> Path:
    (folder / "events.out.tfevents.1").write_bytes(b"\xff" * 99)
    return folder


@pytest.mark.parametrize("make", [missing, empty, damaged])
@pytest.mark.parametrize("out", ["report.html", "no/such/folder/report.html"])
def test_bad_log_directory_is_one_line(
    tmp_path: Path, make: Any, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(make(tmp_path)), "--out", str(tmp_path / out)]) == 2
    reported = capsys.readouterr().err
    assert reported.startswith("tf-libra report: ")
    assert reported.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_report_needs_an_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "--out report.html" in capsys.readouterr().err
    assert main(["report", "--out", "x.html"]) == 2
    assert "arguments must be LOGDIR, got 0" in capsys.readouterr().err


def test_registered_strategy_is_in_every_view(browser: Tab, tmp_path: Path) -> None:
    written(tmp_path / "run")
    with examples.halves() as halves:
        assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "r.html")]) == 0
    browser.driver.get("about:blank")
    browser.trouble()
    browser.driver.get((tmp_path / "r.html").as_uri())
    browser.wait(lambda: browser.one("main").get_attribute("data-ready"))
    browser.view("strategies")
    names = [row.get_attribute("data-strategy") for row in browser.find("#strategies tbody tr")]
    assert halves.name in names and len(names) == len(set(names))
    browser.view("timeline")
    select = Select(browser.one("#timeline-1"))
    texts = [option.text for option in select.options]
    assert [text for text in texts if text.startswith(halves.name)] == [
        f"{halves.name}, r = {r}, predicted" for r in RECORD.threads
    ]
    select.select_by_visible_text(f"{halves.name}, r = 2, predicted")
    reported = f"{halves.name.capitalize()}, r = 2, predicted: "
    browser.wait(lambda: reported in browser.one("#difference").text)
    assert browser.trouble() == []
