"""Chrome traces of synthetic records and of a job of two workers."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.reporting.tensorboard import examples
from tests.worker_processes import Job
from tf_libra.cli import main
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.event_writer import RecordWriter
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.report.chrome_trace import Run, chrome_trace, read_run
from tf_libra.reporting.report.logdir_source import LogdirSource
from tf_libra.specs.plan import Plan


def made_up(ranks: int = 2, ahead_ns: int = 0, **options: Any) -> Run:
    """Returns a run whose rank 1 has a clock that is ahead."""
    record = examples.plan_record(**options)
    steps = []
    for rank in range(ranks):
        step_record = examples.step_record(record, rank)
        shift = ahead_ns if rank else 0
        steps.append(
            dataclasses.replace(
                step_record,
                started_ns=step_record.started_ns + shift,
                finished_ns=step_record.finished_ns + shift,
                all_reduces=tuple(
                    dataclasses.replace(
                        span,
                        enqueued_ns=span.enqueued_ns + shift,
                        started_ns=span.started_ns + shift,
                        first_byte_ns=span.first_byte_ns + shift,
                        finished_ns=span.finished_ns + shift,
                    )
                    for span in step_record.all_reduces
                ),
                backward_start_ns=None if rank else step_record.backward_start_ns,
                produced_ns=() if rank else step_record.produced_ns,
            )
        )
    return Run({record.plan.fingerprint: record}, tuple(steps), ())


def check_format(trace: dict[str, Any]) -> None:
    """Checks that objects of these phases have the fields that the Trace Event Format requires."""
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    assert trace["displayTimeUnit"] in ("ms", "ns")
    threads = set()
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            kinds = {"process_name": "name", "thread_name": "name"}
            key = kinds.get(event["name"], "sort_index")
            assert list(event["args"]) == [key]
            threads.add((event["pid"], event["tid"]))
        else:
            assert event["ph"] == "X"
            assert isinstance(event["cat"], str)
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert (event["pid"], event["tid"]) in threads
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    key = lambda event: (event["pid"], event["tid"])  # noqa: E731
    for _, events in itertools.groupby(sorted(complete, key=key), key=key):
        # Complete events of a thread nest: none ends within another that began before it.
        open_until: list[float] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            while open_until and open_until[-1] <= event["ts"] + 1e-3:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert not open_until or end <= open_until[-1] + 1e-3, event
            open_until.append(end)


def spans(trace: dict[str, Any], rank: int, thread: str) -> list[dict[str, Any]]:
    return [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["pid"] == rank and event["cat"] == thread
    ]


def test_other_clocks_are_aligned() -> None:
    plain, shifted = chrome_trace(made_up()), chrome_trace(made_up(ahead_ns=10**9))
    for rank in (0, 1):
        for thread in ("steps", "communication"):
            for span, other in zip(
                spans(plain, rank, thread), spans(shifted, rank, thread), strict=True
            ):
                assert span["ts"] == pytest.approx(other["ts"], abs=1e-2)  # microseconds
    assert plain["otherData"]["clocks"]["rank 1"].startswith("0 us ahead")
    assert shifted["otherData"]["clocks"]["rank 1"].startswith("1 s ahead")


def test_hostile_names_are_text() -> None:
    trace = chrome_trace(made_up(names=examples.HOSTILE, function=examples.HOSTILE[0]))
    names = [event["name"] for event in spans(trace, 0, "computation")]
    assert set(examples.HOSTILE) <= set(names)


def test_gathers_have_a_thread_of_their_own() -> None:
    run = made_up()
    first, *rest = run.steps
    begin = first.all_reduces[-1]
    gather = dataclasses.replace(begin, group=-1, tensors=(0, 1))
    trace = chrome_trace(
        dataclasses.replace(run, steps=(dataclasses.replace(first, gathers=(gather,)), *rest))
    )
    check_format(trace)
    [shown] = spans(trace, first.rank, "gathers")
    plan = next(iter(run.plans.values())).plan
    assert shown["name"] == "gather"
    assert shown["args"]["tensors"] == list(plan.tensor_names[:2])
    assert shown["args"]["num_bytes"] == begin.num_bytes


def test_single_rank_is_not_aligned() -> None:
    trace = chrome_trace(made_up(ranks=1))
    check_format(trace)


def test_run_without_steps_is_an_error() -> None:
    with pytest.raises(ValueError, match="no step under a plan"):
        chrome_trace(Run({}, (), ()))


@pytest.fixture(scope="module")
def real(traced: Job, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("timeline") / "t.json"
    assert main(["timeline", str(traced.folder / "run"), "--out", str(out)]) == 0
    trace = json.loads(out.read_text())
    assert isinstance(trace, dict)
    return trace


def test_trace_of_a_job_has_the_format(real: dict[str, Any]) -> None:
    check_format(real)
    names = [e["args"]["name"] for e in real["traceEvents"] if e["name"] == "process_name"]
    assert names == ["rank 0", "rank 1"]


@pytest.mark.parametrize("rank", [0, 1])
def test_trace_of_a_job_has_every_all_reduce(
    traced: Job, real: dict[str, Any], three_groups: Plan, rank: int
) -> None:
    steps = [step for step in read_run(Path(traced.folder, "run")).steps if step.rank == rank]
    assert steps
    shown = spans(real, rank, "communication")
    whole = [event for event in shown if "group" in event["args"]]
    assert len(whole) == len(steps) * len(three_groups.groups)
    recorded = [all_reduce for step in steps for all_reduce in step.all_reduces]
    for event, record in zip(whole, recorded, strict=True):
        group = three_groups.groups[record.group]
        assert event["name"] == f"group {record.group}"
        assert event["dur"] == pytest.approx((record.finished_ns - record.started_ns) / 1e3)
        assert event["args"]["num_bytes"] == record.num_bytes
        assert event["args"]["num_threads"] == group.num_threads
        tensors = list(three_groups.tensor_names[group.start : group.stop])
        assert event["args"]["tensors"] == tensors
    assert [span["name"] for span in spans(real, rank, "steps")] == [
        f"step {s.step}" for s in steps
    ]


def test_trace_of_a_job_has_computation(real: dict[str, Any], three_groups: Plan) -> None:
    names = {span["name"] for span in spans(real, 0, "computation")}
    assert names == {"forward", "after backward", *three_groups.tensor_names}


def test_every_rank_records_its_exchanges(traced: Job) -> None:
    steps = read_run(Path(traced.folder, "run")).steps
    for rank in (0, 1):
        [pairs] = [step.exchanges_ns for step in steps if step.rank == rank and step.exchanges_ns]
        assert len(pairs) == 16
        assert all(sent < arrived for sent, arrived in pairs)


def test_ranks_of_one_host_share_a_clock(real: dict[str, Any]) -> None:
    assert real["otherData"]["clocks"]["rank 1"].startswith("0 us ahead")


@pytest.mark.parametrize("content", [None, b"", b"no event file"])
def test_bad_log_directory_is_one_line(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a\nb"
    if content is not None:
        folder.mkdir()
        (folder / "events.out.tfevents.1").write_bytes(content)
    assert main(["timeline", str(folder)]) == 2
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.count("\n") == 1
    assert reported.err.startswith("tf-libra timeline: ")


def written(logdir: Path, record: PlanRecord, ranks: int = 2) -> Path:
    """Writes a log directory of `ranks` ranks; returns the path of rank 0's file."""
    for rank in range(ranks):
        writer = RecordWriter(logdir, rank)
        if rank == 0:
            writer.record(record.step, record)
        for step in range(2):
            step_record = dataclasses.replace(
                examples.step_record(record, rank), step=record.step + step
            )
            writer.record(step_record.step, step_record)
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


def test_truncated_file_is_read_up_to_its_end(tmp_path: Path) -> None:
    path = written(tmp_path, examples.plan_record())
    whole = path.read_bytes()
    for missing in (7, len(whole) // 3):  # as while a record is being written
        path.write_bytes(whole[:-missing])
        run = read_run(tmp_path)
        assert run.problems == ()
        assert LogdirSource.read(tmp_path).damaged == []
    path.write_bytes(whole[:-7])
    assert [(step.rank, step.step) for step in read_run(tmp_path).steps] == [
        (0, 61), (1, 61), (1, 62),
    ]  # fmt: skip


def test_damaged_file_is_reported_and_others_read(tmp_path: Path) -> None:
    path = written(tmp_path, examples.plan_record())
    (path.parent / "events.out.tfevents.0.damaged").write_bytes(b"\0" * 100)
    run = read_run(tmp_path)
    assert len(run.steps) == 4
    [problem] = run.problems
    assert "events.out.tfevents.0.damaged': not an event file (a checksum is wrong)" in problem


def test_damaged_file_is_read_up_to_the_damage(tmp_path: Path) -> None:
    path = written(tmp_path, examples.plan_record())
    content = bytearray(path.read_bytes())
    content[-20] ^= 0xFF  # in the last record
    path.write_bytes(content)
    run = read_run(tmp_path)
    assert [(step.rank, step.step) for step in run.steps] == [(0, 61), (1, 61), (1, 62)]
    [problem] = run.problems
    assert problem.startswith(f"{str(path)!r}: damaged from byte ")
    assert [damaged_file["file"] for damaged_file in LogdirSource.read(tmp_path).damaged] == [
        str(path)
    ]


def test_future_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "run", examples.plan_record(), ranks=1)
    monkeypatch.setattr(record_types, "VERSION", record_types.VERSION + 1)
    with pytest.raises(ValueError, match=r"no readable records of a plan: .*version"):
        read_run(tmp_path)


@pytest.mark.parametrize("content", [b"", b"x" * 40])
def test_no_records(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(content)
    what = "tfevents.1': not an event file" if content else "run a training step"
    with pytest.raises(ValueError, match=f"holds no readable records of a plan.*{what}"):
        read_run(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is not a directory"):
        read_run(tmp_path / "two\nlines")


def test_several_runs_need_a_name(tmp_path: Path) -> None:
    record = examples.plan_record()
    written(tmp_path / "first", record)
    written(tmp_path / "later" / "again", record)
    reported = r"holds 2 runs, name one with --run: 'first', 'later/again'"
    with pytest.raises(ValueError, match=reported):
        read_run(tmp_path)
    assert len(read_run(tmp_path / "first").steps) == 4
    assert len(read_run(tmp_path, "later/again").steps) == 4
    with pytest.raises(ValueError, match=r"run.*'first', 'later/again',.*'\.'"):
        read_run(tmp_path, ".")
    assert len(read_run(tmp_path / "later").steps) == 4


def test_outer_run_is_named_by_a_dot(tmp_path: Path) -> None:
    record, other = examples.plan_record(), examples.plan_record(step=99)
    written(tmp_path, record)
    written(tmp_path / "again", other)
    with pytest.raises(ValueError, match=r"holds 2.*'\.', 'again'"):
        read_run(tmp_path)
    assert {step.step for step in read_run(tmp_path, ".").steps} == {61, 62}
    assert {step.step for step in read_run(tmp_path, "again").steps} == {99, 100}
    out = tmp_path / "t.json"
    assert main(["timeline", str(tmp_path), "--run", ".", "--out", str(out)]) == 0
    assert "step 61" in out.read_text()
    assert "step 99" not in out.read_text()
