"""Reading log directories: real ones are in the other modules, here those that are damaged."""

import dataclasses
from pathlib import Path

import pytest

from tests.reporting.tensorboard import examples
from tf_libra.cli import main
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.event_writer import RecordWriter
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.report.logdir_source import Folder
from tf_libra.reporting.report.run import read_run


def written(logdir: Path, record: PlanRecord, ranks: int = 2) -> Path:
    """A log directory as `ranks` ranks leave it; the path of rank 0's file."""
    for rank in range(ranks):
        writer = RecordWriter(logdir, rank)
        if rank == 0:
            writer.record(record.step, record)
        for step in range(2):
            one = dataclasses.replace(examples.step_record(record, rank), step=record.step + step)
            writer.record(one.step, one)
        writer.close()
    [path] = (logdir / "rank_0").iterdir()
    return path


def test_all_ranks_are_read(tmp_path: Path) -> None:
    record = examples.plan_record()
    written(tmp_path, record)
    run = read_run(tmp_path)
    assert run.plans == {record.plan.fingerprint: record}
    assert [(step.rank, step.step) for step in run.steps] == [(0, 61), (0, 62), (1, 61), (1, 62)]
    assert run.problems == ()
    assert read_run(tmp_path / "rank_0").plans == run.plans


def test_the_last_job_counts(tmp_path: Path) -> None:
    written(tmp_path, examples.plan_record())
    later = examples.plan_record(step=99)
    for path in tmp_path.rglob("*tfevents*"):
        path.rename(path.with_name(path.name.replace("tfevents.1", "tfevents.0")))
    for rank in range(2):
        writer = RecordWriter(tmp_path, rank)
        writer.record(later.step, later)
        writer.record(later.step, examples.step_record(later, rank))
        writer.close()
    assert [step.step for step in read_run(tmp_path).steps] == [99, 99]


def test_hostile_names(tmp_path: Path) -> None:
    record = examples.plan_record(function=examples.HOSTILE[0], names=examples.HOSTILE)
    written(tmp_path, record)
    assert read_run(tmp_path).plans[record.plan.fingerprint] == record


def test_file_that_ends_in_the_middle(tmp_path: Path) -> None:
    path = written(tmp_path, examples.plan_record())
    whole = path.read_bytes()
    for missing in (7, len(whole) // 3):  # as while a record is being written
        path.write_bytes(whole[:-missing])
        run = read_run(tmp_path)
        assert run.problems == ()
        assert Folder.read(tmp_path).damaged == []
    path.write_bytes(whole[:-7])
    assert [(step.rank, step.step) for step in read_run(tmp_path).steps] == [
        (0, 61), (1, 61), (1, 62),
    ]  # fmt: skip


def test_damaged_file_beside_a_good_one(tmp_path: Path) -> None:
    path = written(tmp_path, examples.plan_record())
    (path.parent / "events.out.tfevents.0.damaged").write_bytes(b"\0" * 100)
    run = read_run(tmp_path)
    assert len(run.steps) == 4
    [problem] = run.problems
    assert "events.out.tfevents.0.damaged': no event file (a checksum is wrong)" in problem


def test_a_file_that_is_damaged_in_the_middle_counts_up_to_there(tmp_path: Path) -> None:
    path = written(tmp_path, examples.plan_record())
    content = bytearray(path.read_bytes())
    content[-20] ^= 0xFF  # in the last record
    path.write_bytes(content)
    run = read_run(tmp_path)
    assert [(step.rank, step.step) for step in run.steps] == [(0, 61), (1, 61), (1, 62)]
    [problem] = run.problems
    assert problem.startswith(f"{str(path)!r}: damaged from byte ")
    assert [one["file"] for one in Folder.read(tmp_path).damaged] == [str(path)]


def test_future_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "run", examples.plan_record(), ranks=1)
    monkeypatch.setattr(record_types, "VERSION", record_types.VERSION + 1)
    with pytest.raises(ValueError, match=r"no records of a plan that can be read: .*version"):
        read_run(tmp_path)


@pytest.mark.parametrize("content", [b"", b"x" * 40])
def test_no_records(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(content)
    what = "tfevents.1': no event file" if content else "run a training step"
    with pytest.raises(ValueError, match=f"holds no records of a plan.*{what}"):
        read_run(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is no log directory"):
        read_run(tmp_path / "two\nlines")


def test_of_several_runs_one_has_to_be_named(tmp_path: Path) -> None:
    record = examples.plan_record()
    written(tmp_path / "first", record)
    written(tmp_path / "later" / "again", record)
    told = r"holds 2 runs, name one with --run: 'first', 'later/again'"
    with pytest.raises(ValueError, match=told):
        read_run(tmp_path)
    assert len(read_run(tmp_path / "first").steps) == 4
    assert len(read_run(tmp_path, "later/again").steps) == 4
    with pytest.raises(ValueError, match=r"run must be one of .*'first', 'later/again', got '\.'"):
        read_run(tmp_path, ".")
    assert len(read_run(tmp_path / "later").steps) == 4


def test_a_run_that_contains_another_is_named_by_a_dot(tmp_path: Path) -> None:
    record, other = examples.plan_record(), examples.plan_record(step=99)
    written(tmp_path, record)
    written(tmp_path / "again", other)
    with pytest.raises(ValueError, match=r"holds 2 runs, name one with --run: '\.', 'again'"):
        read_run(tmp_path)
    assert {step.step for step in read_run(tmp_path, ".").steps} == {61, 62}
    assert {step.step for step in read_run(tmp_path, "again").steps} == {99, 100}
    out = tmp_path / "t.json"
    assert main(["timeline", str(tmp_path), "--run", ".", "--out", str(out)]) == 0
    assert "step 61" in out.read_text()
    assert "step 99" not in out.read_text()
