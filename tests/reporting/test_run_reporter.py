"""Run reporter: log, history and records."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tf_libra
from tests.reporting.tensorboard import examples
from tf_libra.autotune import DriftVerdict, Phase, PlanSource, TuningResult
from tf_libra.autotune.drift_detector import DriftDetector
from tf_libra.autotune.trial_comparison import Candidate, Race
from tf_libra.config import DataParallelOptions
from tf_libra.planning.one_worker import OneWorkerComparison
from tf_libra.reporting.report.chrome_trace import read_run
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.reporting.text_report import ORIGIN_NAMES
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord

CONCLUSION = examples.plan_record().conclusion


def options_for(**options: Any) -> DataParallelOptions:
    found: DataParallelOptions = tf_libra.optimize(**options).keywords["options"]
    return found


def reporter_for(**options: Any) -> RunReporter:
    return RunReporter(options_for(**options))


def files(folder: Path) -> set[str]:
    return {path.name.split(".")[0] for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("is_trial", [False, True])
def test_stages_that_compete_with_other_strategies_give_no_advice(
    is_trial: bool, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = reporter_for()
    reporter.is_trial = is_trial
    reporter.on_one_worker(None)
    reporter.on_one_worker(OneWorkerComparison(2, step_seconds=2.0, one_worker_seconds=1.0))
    assert ("one worker: " in caplog.text) is not is_trial


def test_closed_reporter_writes_nothing(tmp_path: Path, three_groups: Plan) -> None:
    conclusion = TuningResult(three_groups)
    early, late = reporter_for(logdir=tmp_path / "early"), reporter_for(logdir=tmp_path / "late")
    early.close()
    for reporter, folder in (early, "early"), (late, "late"):
        reporter.on_join(0, options_for(logdir=tmp_path / folder))
        reporter.on_function("step")
        reporter.on_plan_activated(conclusion, PlanSource.USER, 1)
    assert files(tmp_path / "early") == set()
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert files(tmp_path / "late") == {"plan", "events"}
    late.close()
    late.on_plan_activated(conclusion, PlanSource.USER, 2)
    late.on_step_end(2, 0.1, is_steady=True)
    late.on_step_telemetry(2, (0, 1), ())
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert set(after) == set(written)
    assert all(after[path].startswith(text) for path, text in written.items())
    assert late.explain()


@pytest.mark.parametrize("rank", [0, 1])
def test_drift_is_recorded_on_rank_0(rank: int, tmp_path: Path) -> None:
    reporter = reporter_for(logdir=tmp_path)
    reporter.on_join(rank, options_for(logdir=tmp_path))
    reporter.on_function("step")
    drift = DriftDetector(0.02, 0.1)
    for found, seconds in (
        (DriftVerdict.NO_CHANGE, 0.1),
        (DriftVerdict.DRIFTED, 0.2),
        (DriftVerdict.RECOVERED, 0.1),
        (DriftVerdict.CACHE_STALE, 0.3),
    ):
        drift.record_step(seconds, 1)
        drift.check()
        reporter.on_drift_check(found, drift, 32 + int(100 * seconds))
    reporter.close()
    recorded = {
        (value.tag.rpartition("/")[2], event.step): tf.make_ndarray(value.tensor).item()
        for path in tmp_path.rglob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    of_drift = {key: seconds for key, seconds in recorded.items() if "step_seconds" in key[0]}
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


@pytest.mark.parametrize(
    ("rank", "strategy", "level"), [(0, "libra", "WARNING"), (1, "libra", ""), (0, "auto", "INFO")]
)
def test_slower_than_one_worker_is_one_warning_unless_trials_follow(
    rank: int, strategy: str, level: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    slow = replace(CONCLUSION, rest_seconds=1e-6, race=None, held_out_error=0.1)
    compared = slow.compare_with_one_worker(step_seconds=10.0)
    assert compared is not None and compared.is_slower
    winner = Candidate(slow.plan, None, (10.0, 10.0))
    slow = replace(slow, race=Race((winner,)))
    reporter = reporter_for(strategy=strategy, logdir=tmp_path)
    reporter.on_join(rank, options_for(strategy=strategy, logdir=tmp_path))
    reporter.on_function("step")
    for step in (8, 80):  # retuning repeats nothing
        reporter.on_plan_activated(slow, PlanSource.TUNED, step)
    reporter.close()
    said = [
        record.levelname for record in caplog.records if record.message.startswith("one worker: ")
    ]
    assert said == ([level] if level else [])
    assert reporter.explain().splitlines()[1].startswith("one worker: ")
    if rank == 0:
        [profile] = tmp_path.rglob("profile*.json")
        assert BackwardProfile.from_json(profile.read_text()).rest_seconds == 1e-6


@pytest.mark.parametrize("given", [False, True])
def test_unused_plan_is_reported(
    given: bool, plan_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = reporter_for(plan=plan_file if given else None)
    with caplog.at_level(logging.INFO, logger="tf_libra"):
        reporter.on_unplanned_gradients("Horovod", {"w": "op=Min"}, has_planned=False)
    for text in (caplog.text, reporter.explain()):
        assert "there is nothing to plan" in " ".join(text.split())
        assert ("the user-provided plan is not used" in " ".join(text.split())) == given


@pytest.mark.parametrize("origin", PlanSource)
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_logs_the_fit_except_of_a_user_provided_plan(
    origin: PlanSource, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = reporter_for()
    with caplog.at_level(logging.INFO, logger="tf_libra"):
        reporter.on_join(rank, options_for())
        logging.getLogger("tf_libra").setLevel(logging.INFO)
        reporter.on_plan_activated(CONCLUSION, origin, 8)
    is_logged = rank == 0 and origin is not PlanSource.USER
    assert ("fit: g(b, r) = b /" in caplog.text) == is_logged
    assert "note: a note" not in caplog.text  # it asks for nothing
    assert f"({ORIGIN_NAMES[origin.value]}) is active from step 8 on" in caplog.text


def test_trials_are_logged_before_the_fit(
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
    reporter = reporter_for(strategy="libra")
    with caplog.at_level(logging.INFO, logger="tf_libra"):
        reporter.on_join(0, options_for(strategy="libra"))
        logging.getLogger("tf_libra").setLevel(logging.INFO)
        tuned = replace(CONCLUSION, is_complete=False).with_race(race)
        reporter.on_plan_activated(tuned, PlanSource.TUNED, 8)
    order = [
        "wfbp instead of the requested libra",
        "trials: interleaved trials over 4 rounds",
        "fit: ",
        "note: a note",
    ]
    places = [caplog.text.index(words) for words in order]
    assert places == sorted(places)
    assert caplog.text.count("interleaved trials over") == 1


def test_cached_and_tuned_results_have_the_same_explanation() -> None:
    explained = []
    for origin in (PlanSource.TUNED, PlanSource.CACHED):
        reporter = reporter_for()
        reporter.on_plan_activated(CONCLUSION, origin, 1)
        explained.append(reporter.explain())
    assert explained[0] == explained[1]
    assert "60 samples" in explained[0]
    assert "held-out steps 9.0 %" in " ".join(explained[0].split())


def test_result_without_samples_has_no_fit_table() -> None:
    reporter = reporter_for()
    reporter.on_plan_activated(replace(CONCLUSION, samples=()), PlanSource.CACHED, 1)
    assert "fitted model" not in reporter.explain()
    assert "active plan, times from the start of backward" in reporter.explain()


def test_phase_is_logged_when_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    reporter = reporter_for()
    reporter.on_phase(Phase.MEASURE)
    with caplog.at_level(logging.INFO, logger="tf_libra"):
        for step, phase in enumerate([Phase.MEASURE] * 2 + [Phase.SAMPLE] * 2, start=1):
            reporter.on_step_begin(phase, step)
    assert caplog.messages == ["measure: from step 1 on", "sample: from step 3 on"]


def test_unwritable_graph_does_not_stop_the_records(
    tmp_path: Path, three_groups: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    class TooLarge:
        """Trace of over 2 GB, which TensorFlow cannot serialize."""

        def as_graph_def(self) -> Any:
            raise tf.errors.InvalidArgumentError(None, None, "Cannot serialize protocol buffer")

    options = options_for(logdir=tmp_path)
    reporter = RunReporter(options)
    reporter.on_join(0, options)
    reporter.on_function("step")
    reporter.on_plan_activated(TuningResult(three_groups), PlanSource.USER, 1)
    reporter.on_graph(1, TooLarge(), ())
    assert "graph of the step: Cannot serialize" in caplog.text
    reporter.on_step_telemetry(2, (1, 2), ())
    reporter.close()
    assert [(step.step, step.rank) for step in read_run(tmp_path).steps] == [(2, 0)]


def test_explain_says_what_zeros_were_left_out(three_groups: Plan) -> None:
    options = options_for()
    reporter = RunReporter(options)
    reporter.on_join(0, options)
    reporter.on_plan_activated(TuningResult(three_groups), PlanSource.USER, 1)
    assert "zero blocks" not in reporter.explain()
    times = {"enqueued_ns": 1, "started_ns": 2, "first_byte_ns": 3, "finished_ns": 4}
    records = [
        AllReduceRecord(2, group, "plan", group, 1, 6000, tensor_names=("a",), **times, **omitted)
        for group, omitted in enumerate(({"omitted_bytes": 5000}, {"omitted_bytes": 2000}, {}))
    ]
    reporter.on_step_telemetry(2, (1, 5), records)
    assert "leaves out 7 kB of zeros" in reporter.explain()
