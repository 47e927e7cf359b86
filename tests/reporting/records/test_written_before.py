"""Files that earlier versions have left in `cache_dir` and `logdir` are still read.

`written_before` is what a job of two ranks left when a kept plan was three texts, and what it
rested on stood in records of `logdir` alone.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tf_libra.cost_model import ContentionModel
from tf_libra.reporting.records import event_reader, plan_store, record_types
from tf_libra.reporting.records.timeline import TimelineRecord
from tf_libra.reporting.report.chrome_trace import chrome_trace, read_run
from tf_libra.reporting.report.logdir_source import collect_answers
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

FOLDER = Path(__file__).parent / "written_before"
PLAN = Plan.from_json((FOLDER / "plan.json").read_text())


def test_cached_plan_of_the_first_version_is_loaded(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "kept.json", tmp_path / f"tf_libra-{'k' * 32}.json")
    found = plan_store.load_plan(tmp_path, "k" * 64)
    assert found is not None
    assert found.plan == PLAN
    assert found.profile == BackwardProfile.from_json((FOLDER / "profile.json").read_text())
    assert found.cost_model == ContentionModel.from_json((FOLDER / "cost_model.json").read_text())
    assert found.is_complete
    assert not found.is_fitted  # how well it fits was not kept
    assert (
        plan_store.load_plan(plan_store.store_plan(tmp_path / "again", "key", found).parent, "key")
        == found
    )


def test_records_of_a_run_are_read() -> None:
    run = read_run(FOLDER)
    assert run.problems == ()
    [record] = run.plans.values()
    conclusion = record.conclusion
    assert (record.origin, conclusion.plan) == ("made", PLAN)
    assert conclusion.is_fitted
    assert conclusion.held_out_error is not None
    assert {sample.num_threads for sample in conclusion.samples} == {1, 2}
    assert len(conclusion.samples) == 75
    assert {step.rank for step in run.steps} == {0, 1}
    assert {event["pid"] for event in chrome_trace(run)["traceEvents"]} == {0, 1}


def test_computed_timeline_equals_the_stored_one() -> None:
    """The last stored timeline covers every traced step."""
    [path] = (FOLDER / "rank_0").iterdir()
    *_, last = [summary for summary in event_reader.read(path).summaries if not summary.is_scalar]
    assert record_types.parse_kind(last.content) == TimelineRecord.KIND
    written = TimelineRecord.from_json(last.text)
    steps = [step for step in read_run(FOLDER).steps if step.rank == 0]
    assert TimelineRecord.from_steps(PLAN, steps) == written


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """Returns the tab's answers, by route and what is shown."""
    found = collect_answers(FOLDER)
    return {
        f"{route} {parameters.get('show', '')}".strip(): answer
        for route, parameters, answer in found
    }


def test_tab_shows_the_run(answers: dict[str, Any]) -> None:
    assert answers["runs"]["value"]["problems"] == []
    assert [answer for answer in answers.values() if "error" in answer] == []
    assert len(answers["contention"]["value"]["samples"]) == 75
    measured = answers["timeline measured"]["value"]
    assert [span["group"] for span in measured["spans"]] == list(range(len(PLAN.groups)))
    assert json.loads((FOLDER / "plan.json").read_text())["strategy"] == measured["strategy"]
