"""Records of a training function by rank and step, and their write failures."""

import logging
import statistics
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.reporting.records.test_event_writer import values
from tests.reporting.tensorboard import examples
from tf_libra.reporting.records import record_types, recorder
from tf_libra.reporting.records.event_writer import run_folder
from tf_libra.reporting.records.recorder import Recorder
from tf_libra.reporting.records.step import StepRecord

RECORD = examples.plan_record()
LOG = logging.getLogger("test")


def made(folder: Path, rank: int = 0, **options: Any) -> Recorder:
    return Recorder(folder, rank, "step", LOG, **options)


def series(folder: Path, rank: int = 0) -> dict[str, list[tuple[int, Any]]]:
    """Returns steps and values that were written, by tag without the function's name."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for step, value in values(run_folder(folder, rank)):
        tag = value.tag.partition("/")[2]
        array = tf.make_ndarray(value.tensor).item()
        found.setdefault(tag, []).append((step, array))
    return found


def test_steps_are_written_singly_and_then_as_medians(tmp_path: Path) -> None:
    writer = made(tmp_path)
    single = recorder._SINGLE_STEPS
    # Binary fractions, whose sums are exact: the last is the one with which five seconds are over.
    seconds = [0.25] * single + [0.5, 1.0, 2.0, 1.0, 0.5] + [0.5] * 9
    for step, took in enumerate(seconds, 1):
        writer.record_step_seconds(step, took, is_steady=True)
    writer.record_step_seconds(len(seconds) + 1, 7.0, is_steady=False)
    writer.close()
    found = series(tmp_path)
    steps = found[record_types.STEP_SECONDS]
    assert [step for step, _ in steps] == [*range(1, single + 1), single + 5]
    assert steps[-1][1] == statistics.median((0.5, 1.0, 2.0, 1.0, 0.5))
    assert found[record_types.DISTURBED_STEP_SECONDS] == [(len(seconds) + 1, 7.0)]


def test_tuning_budget_is_written_once(tmp_path: Path) -> None:
    waits, has = (made(tmp_path / name, max_tuning_steps=40) for name in ("w", "h"))
    has.record_plan(RECORD)
    for writer in (waits, has):
        for step in (1, 2):
            writer.record_step_seconds(step, 0.5, is_steady=True)
        writer.close()
    assert series(tmp_path / "w")[record_types.MAX_TUNING_STEPS] == [(1, 40)]
    assert record_types.MAX_TUNING_STEPS not in series(tmp_path / "h")


def test_other_ranks_write_only_their_own_records(tmp_path: Path) -> None:
    for rank in (0, 1):
        writer = made(tmp_path, rank)
        writer.record_step(1, (0, 10), ())  # before a plan is active, nothing is written
        writer.record_plan(RECORD)
        writer.record_step_seconds(2, 0.5, is_steady=True)
        writer.record_drift(3, 0.5, 0.25, is_back=False)
        writer.record_drift(4, 0.25, 0.25, is_back=True)
        writer.add_clock_exchanges(((1, 2), (3, 4)))
        for step in (5, 6):
            writer.record_step(step, (10 * step, 10 * step + 5), ())
        writer.record(examples.background_record(1))
        writer.close()
    first, second = series(tmp_path), series(tmp_path, 1)
    assert first[record_types.DRIFTED_STEP_SECONDS] == [(3, 0.5)]
    assert first[record_types.RETURNED_STEP_SECONDS] == [(4, 0.25)]
    assert first[record_types.EXPECTED_STEP_SECONDS] == [(3, 0.25), (4, 0.25)]
    own = {RECORD.tag.partition("/")[2]} | {
        name for name in first if name in (*record_types.SCALAR_TAGS, record_types.MAX_TUNING_STEPS)
    }
    assert first.keys() - own == second.keys() and len(second) == 2
    for rank, found in enumerate((first, second)):
        [texts] = [some for tag, some in found.items() if tag.startswith("step/")]
        steps = [StepRecord.from_json(text.decode()) for _, text in texts]
        assert [(step_record.step, step_record.rank) for step_record in steps] == [
            (5, rank),
            (6, rank),
        ]
        # The exchange of messages belongs to the next record alone.
        assert [step_record.exchanges_ns for step_record in steps] == [((1, 2), (3, 4)), ()]


def test_traced_step_has_backward_and_residual_seconds(tmp_path: Path) -> None:
    writer = made(tmp_path)
    writer.record_plan(RECORD)
    timeline = examples.measured(RECORD)
    writer.record_step(8, (0, 10**9), (), timeline=timeline)
    writer.close()
    found = series(tmp_path)
    [(_, whole)] = found[record_types.BACKWARD_SECONDS]
    [(step, rest)] = found[record_types.RESIDUAL_SECONDS]
    assert step == 8 and whole == pytest.approx(timeline.backward_seconds, rel=1e-6)
    assert rest == pytest.approx(timeline.backward_seconds - timeline.compute_seconds, rel=1e-5)


class Full:
    """File on a full disk."""

    def close(self) -> None:
        raise OSError("no space left")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.close()


def test_write_failure_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    without, full = made(tmp_path / "file"), made(tmp_path)
    disk: Any = Full()
    full._writer = disk
    for writer in (without, full):
        writer.record_plan(RECORD)
        writer.record_step_seconds(1, 0.5, is_steady=True)
        writer.record_graph(1, tf.Graph().as_graph_def)
        writer.record_step(2, (0, 10), ())
        writer.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "no space left" in caplog.text


def test_graph_failure_does_not_stop_the_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = made(tmp_path)

    def draw() -> Any:
        raise ValueError("over 2 GB")

    writer.record_graph(1, draw)
    writer.record_step_seconds(1, 0.5, is_steady=True)
    writer.close()
    assert "graph of the step: over 2 GB" in caplog.text
    assert series(tmp_path)[record_types.STEP_SECONDS] == [(1, 0.5)]
