"""Answers about a log directory without TensorBoard's server equal those over TensorBoard."""

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext

from tests.reporting.tensorboard import examples
from tests.reporting.tensorboard.conftest import write, write_raw
from tf_libra.reporting.records.event_writer import RecordWriter
from tf_libra.reporting.records.record_types import plugin_content
from tf_libra.reporting.report.logdir_source import LogdirSource
from tf_libra.reporting.tensorboard import routes
from tf_libra.reporting.tensorboard.plugin import DataProviderSource
from tf_libra.reporting.tensorboard.queries import runs
from tf_libra.reporting.tensorboard.record_lookup import HISTORY_POINTS

WRITTEN_BEFORE = Path(__file__).parents[2] / "reporting" / "records" / "written_before"


def provided(logdir: Path) -> DataProviderSource:
    """Returns the source over TensorBoard, with all values."""
    multiplexer = EventMultiplexer(tensor_size_guidance={"libra": 10**6})
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    return DataProviderSource(
        MultiplexerDataProvider(multiplexer, str(logdir)), RequestContext(), ""
    )


def made(tmp_path: Path) -> Path:
    """Writes two runs with graphs, and one in the log directory itself."""
    for name in ("first", "second"):
        write(tmp_path / name, examples.plan_record(function=name))
        writer = RecordWriter(tmp_path / name, 0)
        writer.graph(61, tf.Graph().as_graph_def().SerializeToString())
        writer.close()
    writer = RecordWriter(tmp_path, 0)
    writer.record(12, examples.burst_record())
    writer.history(1, "young", {"step_seconds": 0.01, "max_tuning_steps": 60})
    writer.close()
    for path in (tmp_path / "rank_0").iterdir():
        path.rename(tmp_path / path.name)
    return tmp_path


def answers(source: Any) -> list[tuple[str, routes.Arguments, Any]]:
    return [
        (route, arguments, json.loads(json.dumps(routes.ROUTES[route].answer(source, **arguments))))
        for route, arguments in routes.all_requests(source)
    ]


@pytest.mark.parametrize("where", [made, lambda _: WRITTEN_BEFORE], ids=["made", "before"])
def test_answers_equal_those_over_tensorboard(tmp_path: Path, where: Any) -> None:
    logdir = where(tmp_path)
    found = answers(LogdirSource.read(logdir))
    assert {route for route, *_ in found} == set(routes.ROUTES)
    assert found == answers(provided(logdir))


def test_unreadable_records_equal_those_over_tensorboard(tmp_path: Path) -> None:
    plan = plugin_content("plan")
    write_raw(tmp_path, "future", b"{}", plan.replace(b": 1", b": 2"))
    write_raw(tmp_path, "no text", b"\xff\xfe\x00", plan)
    write_raw(tmp_path, "no json", b"{}", b"\x00")
    write_raw(tmp_path, "cut", examples.plan_record().to_json()[:100].encode(), plan)
    ours, theirs = (runs(source) for source in (LogdirSource.read(tmp_path), provided(tmp_path)))
    assert [problem["tag"] for problem in ours["problems"]] == [
        "cut",
        "future",
        "no json",
        "no text",
    ]
    assert ours == theirs


def test_long_series_are_sampled_with_their_last_point(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, 0)
    for step in range(2 * HISTORY_POINTS + 1):
        writer.history(step, "step", {"step_seconds": float(step)})
    writer.close()
    found = LogdirSource.read(tmp_path).points("rank_0", ["step/step_seconds"], HISTORY_POINTS)
    points = found["step/step_seconds"]
    assert len(points) == HISTORY_POINTS
    assert points[-1] == (2 * HISTORY_POINTS, float(2 * HISTORY_POINTS))
    assert [step for step, _ in points] == sorted({step for step, _ in points})
    assert LogdirSource.read(tmp_path).points("rank_0", ["other"], 1) == {}
