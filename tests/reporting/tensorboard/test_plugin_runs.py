"""Listings of runs by the backend: pipelines, bursts, hostile names, unreadable records."""

from pathlib import Path

import pytest

from tests.reporting.tensorboard import examples
from tests.reporting.tensorboard.conftest import HOSTILE_RUN
from tests.reporting.tensorboard.plugin_backend import RECORD, RUN, Backend, write_alone
from tf_libra import strategies
from tf_libra.reporting.records.event_writer import RecordWriter


@pytest.fixture(scope="module")
def odd(hostile: Path) -> Backend:
    return Backend(hostile)


def test_runs_lists_plans_by_run(backend: Backend) -> None:
    listed = backend.answer("runs")
    assert listed["problems"] == []
    [heading] = listed["plans"]
    assert heading["run"] == RUN
    assert heading["fingerprint"] == RECORD.plan.fingerprint
    assert (heading["step"], heading["strategy"]) == (61, "libra")


def test_hostile_names_are_unchanged(odd: Backend) -> None:
    plans = [plan for plan in odd.answer("runs")["plans"] if plan["run"] == f"{HOSTILE_RUN}/rank_0"]
    assert sorted(plan["function"] for plan in plans) == sorted(examples.HOSTILE)
    for plan in plans:
        view = odd.answer("plan", run=plan["run"], tag=plan["tag"])
        assert view["function"] == plan["function"]
        names = odd.answer("group", run=plan["run"], tag=plan["tag"], group=0)["names"]
        assert names[0] == examples.HOSTILE[0]


def test_unreadable_summaries_are_listed_with_reasons(odd: Backend) -> None:
    problems = {problem["tag"]: problem["message"] for problem in odd.answer("runs")["problems"]}
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
    assert [strategy["name"] for strategy in known.pop("strategies")] == list(strategies.BY_NAME)
    assert known == {
        "plans": [],
        "families": [],
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
    write_alone(tmp_path, record)
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


def test_runs_list_families(tmp_path: Path) -> None:
    write_alone(tmp_path, examples.family_record(examples.HOSTILE[0]))
    listed = Backend(tmp_path).answer("runs")
    assert (listed["plans"], listed["problems"]) == ([], [])
    [shown] = listed["families"]
    assert (shown["function"], shown["active"]) == ("train_step", "data parallelism")
    assert shown["compared"].startswith("2 workers train 1.4 times as fast as one: ")
    assert [row["name"] for row in shown["rows"]] == ["data parallelism", "one-rank", "spp"]
    assert [row["measured_seconds"] for row in shown["rows"]] == [0.023, 0.033, None]
    assert shown["rows"][2]["left_out"] == examples.HOSTILE[0]


def test_runs_list_bursts_and_background_jobs(tmp_path: Path) -> None:
    record = examples.burst_record(names=examples.HOSTILE[:1])
    write_alone(tmp_path, record)
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
