"""TensorBoard's own reader reads the written files."""

import json
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.reporting.tensorboard import examples
from tf_libra.reporting.records.event_writer import RecordWriter, run_folder
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.records.record_types import PLUGIN_NAME


def values(folder: Path) -> list[tuple[int, Any]]:
    """Returns steps and values of all event files, in order."""
    files = sorted(folder.glob("events*.v2"))
    return [
        (event.step, value)
        for file in files
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    ]


def test_records_are_series_of_the_plugin(tmp_path: Path) -> None:
    record = examples.plan_record()
    writer = RecordWriter(tmp_path, 3)
    for step in (5, 9):
        writer.record(step, record)
    writer.close()
    first, second = values(run_folder(tmp_path, 3))
    assert [first[0], second[0]] == [5, 9]
    for _, value in (first, second):
        assert value.tag == record.tag
        [text] = value.tensor.string_val
        assert PlanRecord.from_json(text.decode()) == record
    # Readers take what a series is from its first value.
    plugin = first[1].metadata.plugin_data
    assert plugin.plugin_name == PLUGIN_NAME
    assert json.loads(plugin.content)
    assert not second[1].HasField("metadata")


def test_histories_are_scalars(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, 0)
    writer.history(2, "step", {"step_seconds": 0.5, "other": 1.0})
    writer.close()
    found = {value.tag: value for _, value in values(run_folder(tmp_path, 0))}
    assert set(found) == {"step/step_seconds", "step/other"}
    value = found["step/step_seconds"]
    assert tf.make_ndarray(value.tensor) == 0.5
    assert value.metadata.data_class == 1


def test_writers_have_their_own_files_in_order(tmp_path: Path) -> None:
    writers = [RecordWriter(tmp_path, 0) for _ in range(12)]
    for number, writer in enumerate(writers):
        writer.history(number, "step", {"step_seconds": 1.0})
        writer.flush()  # visible to readers though it is open
    assert [step for step, _ in values(run_folder(tmp_path, 0))] == list(range(12))
    for writer in writers:
        writer.close()
