"""A registered record type and its card."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.reporting.tensorboard import examples
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.event_writer import RecordWriter
from tf_libra.reporting.records.record_types import RecordDocument, series_tag
from tf_libra.reporting.report.chrome_trace import read_run
from tf_libra.reporting.report.logdir_source import LogdirSource
from tf_libra.reporting.tensorboard.queries import runs
from tf_libra.reporting.tensorboard.views import card_registry


@pytest.fixture
def note() -> Iterator[type[Any]]:
    """Registers a record type with a text, for the duration of the test."""

    @record_types.register
    @dataclasses.dataclass(frozen=True)
    class NoteRecord(RecordDocument):
        function: str
        step: int
        text: str

        KIND: ClassVar[str] = "note"

        @property
        def tag(self) -> str:
            return series_tag(self.function, self.KIND, "any")

    @card_registry.register("notes", NoteRecord)
    def note_view(record: NoteRecord) -> dict[str, Any]:
        return {"function": record.function, "says": record.text.upper()}

    yield NoteRecord
    card_registry.CARDS.forget("note")
    record_types.KINDS.forget("note")


def test_registered_card_is_in_the_listing(note: type[Any], tmp_path: Path) -> None:
    plan = examples.plan_record()
    writer = RecordWriter(tmp_path / "job", 0)
    writer.record(3, note("step", 3, "hello"))
    writer.record(plan.step, plan)
    writer.close()
    listed = runs(LogdirSource.read(tmp_path))
    assert listed["notes"] == [
        {"run": "job/rank_0", "job": "job", "function": "step", "says": "HELLO"}
    ]
    assert (len(listed["plans"]), listed["problems"]) == (1, [])
    assert read_run(tmp_path).problems == ()


def test_record_of_an_unknown_kind_is_a_problem(note: type[Any], tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, 0)
    writer.record(3, note("step", 3, "hello"))
    writer.close()
    record_types.KINDS.forget("note")
    try:
        [problem] = runs(LogdirSource.read(tmp_path))["problems"]
    finally:
        record_types.register(note)
    assert "kind must be one of plan, step, timeline" in problem["message"]
