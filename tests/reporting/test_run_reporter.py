"""The reports of a training function, and their records."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tf_libra
from tests.reporting.tensorboard import examples
from tf_libra.autotune import DriftVerdict, Phase, PlanSource, TuningResult
from tf_libra.autotune.drift_detector import Drift
from tf_libra.autotune.interleaved_trials import Candidate, Race
from tf_libra.config import Options
from tf_libra.reporting.report.chrome_trace import read_run
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.specs.plan import Plan

CONCLUSION = examples.plan_record().conclusion


def asked(**options: Any) -> Options:
    found: Options = tf_libra.optimize(**options).keywords["options"]
    return found


def story(**options: Any) -> RunReporter:
    return RunReporter(asked(**options))


def files(folder: Path) -> set[str]:
    return {path.name.split(".")[0] for path in folder.rglob("*") if path.is_file()}


def test_what_is_closed_writes_nothing_more(tmp_path: Path, three_groups: Plan) -> None:
    conclusion = TuningResult(three_groups)
    early, late = story(logdir=tmp_path / "early"), story(logdir=tmp_path / "late")
    early.close()
    for one, folder in (early, "early"), (late, "late"):
        one.on_join(0, asked(logdir=tmp_path / folder))
        one.on_function("step")
        one.on_plan_activated(conclusion, PlanSource.GIVEN, 1)
    assert files(tmp_path / "early") == set()
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert files(tmp_path / "late") == {"plan", "events"}
    late.close()
    late.on_plan_activated(conclusion, PlanSource.GIVEN, 2)
    late.on_step_end(2, 0.1, usual=True)
    late.on_step_telemetry(2, (0, 1), ())
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert set(after) == set(written)
    assert all(after[path].startswith(text) for path, text in written.items())
    assert late.explain()


@pytest.mark.parametrize("rank", [0, 1])
def test_why_plans_are_tried_out_again_is_kept_for_the_tab(rank: int, tmp_path: Path) -> None:
    one = story(logdir=tmp_path)
    one.on_join(rank, asked(logdir=tmp_path))
    one.on_function("step")
    drift = Drift(0.02, 0.1)
    for found, seconds in (
        (DriftVerdict.NOTHING, 0.1),
        (DriftVerdict.DRIFT, 0.2),
        (DriftVerdict.PASSED, 0.1),
        (DriftVerdict.STALE, 0.3),
    ):
        drift.ran(seconds, 1)
        drift.look()
        one.on_drift_check(found, drift, 32 + int(100 * seconds))
    one.close()
    kept = {
        (value.tag.rpartition("/")[2], event.step): tf.make_ndarray(value.tensor).item()
        for path in tmp_path.rglob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    of_drift = {key: seconds for key, seconds in kept.items() if "step_seconds" in key[0]}
    assert of_drift == pytest.approx(
        {
            ("drifted_step_seconds", 52): 0.2,
            ("returned_step_seconds", 42): 0.1,
            ("expected_step_seconds", 52): 0.1,
            ("expected_step_seconds", 42): 0.1,
            ("drifted_step_seconds", 62): 0.3,
            ("expected_step_seconds", 62): 0.1,
        }
        if rank == 0
        else {}
    )


@pytest.mark.parametrize("given", [False, True])
def test_plan_that_is_not_used_is_named(
    given: bool, plan_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = story(plan=plan_file if given else None)
    with caplog.at_level(logging.INFO, logger="tf_libra"):
        one.on_unplanned_gradients("Horovod", {"w": "op=Min"}, anything_else=False)
    for told in (caplog.text, one.explain()):
        assert "there is nothing to plan" in " ".join(told.split())
        assert ("the plan given is not used" in " ".join(told.split())) == given


@pytest.mark.parametrize("origin", PlanSource)
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_tells_what_a_plan_rests_on_unless_it_was_given(
    origin: PlanSource, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    one = story()
    with caplog.at_level(logging.INFO, logger="tf_libra"):
        one.on_join(rank, asked())
        logging.getLogger("tf_libra").setLevel(logging.INFO)
        one.on_plan_activated(CONCLUSION, origin, 8)
    told = rank == 0 and origin is not PlanSource.GIVEN
    assert ("fit: g(b, r) = b /" in caplog.text) == told
    assert ("note: a note" in caplog.text) == told
    assert f"({origin.value}) is in force from step 8 on" in caplog.text


def test_what_the_plan_is_and_how_it_was_measured_stands_before_the_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    profile, model = CONCLUSION.profile, CONCLUSION.cost_model
    assert profile is not None
    assert model is not None
    won = tf_libra.make_plan(profile, model, "wfbp")
    race = Race(
        (
            Candidate(won, 0.04, (0.050, 0.052, 0.049, 0.051)),
            Candidate(CONCLUSION.plan, 0.03, (0.060, 0.063, 0.058, 0.061)),
        )
    )
    one = story(strategy="libra")
    with caplog.at_level(logging.INFO, logger="tf_libra"):
        one.on_join(0, asked(strategy="libra"))
        logging.getLogger("tf_libra").setLevel(logging.INFO)
        one.on_plan_activated(CONCLUSION.after(race), PlanSource.MADE, 8)
    order = [
        "The plan is of wfbp, not of libra",
        "note: race over 4 rounds",
        "fit: ",
        "note: a note",
    ]
    places = [caplog.text.index(words) for words in order]
    assert places == sorted(places)
    assert caplog.text.count("race over") == 1


def test_conclusion_of_an_earlier_job_is_explained_as_that_of_this_one() -> None:
    explained = []
    for origin in (PlanSource.MADE, PlanSource.KEPT):
        one = story()
        one.on_plan_activated(CONCLUSION, origin, 1)
        explained.append(one.explain())
    assert explained[0] == explained[1]
    assert "60 samples" in explained[0]
    assert "steps of plans it has not seen are missed by 9.0 %" in " ".join(explained[0].split())


def test_conclusion_whose_errors_nobody_has_kept_is_explained_without() -> None:
    one = story()
    one.on_plan_activated(replace(CONCLUSION, samples=()), PlanSource.KEPT, 1)
    assert "fitted model" not in one.explain()
    assert "plan, counted from the start of backward" in one.explain()


def test_phase_is_told_when_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    one = story()
    one.on_phase(Phase.MEASURE)
    with caplog.at_level(logging.INFO, logger="tf_libra"):
        for step, phase in enumerate([Phase.MEASURE] * 2 + [Phase.SAMPLE] * 2, start=1):
            one.on_step_begin(phase, step)
    assert caplog.messages == ["measure: from step 1 on", "sample: from step 3 on"]


def test_graph_that_cannot_be_written_leaves_everything_else(
    tmp_path: Path, three_groups: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    class TooLarge:
        """As a trace of over 2 GB, which TensorFlow cannot hand out."""

        def as_graph_def(self) -> Any:
            raise tf.errors.InvalidArgumentError(None, None, "Cannot serialize protocol buffer")

    options = asked(logdir=tmp_path)
    told = RunReporter(options)
    told.on_join(0, options)
    told.on_function("step")
    told.on_plan_activated(TuningResult(three_groups), PlanSource.GIVEN, 1)
    told.on_graph(1, TooLarge(), ())
    assert "the graph of the step is not written: Cannot serialize" in caplog.text
    told.on_step_telemetry(2, (1, 2), ())
    told.close()
    assert [(step.step, step.rank) for step in read_run(tmp_path).steps] == [(2, 0)]
