"""Chrome trace of the measured steps of all ranks, for Perfetto.

A process per rank; in it threads for its steps, computation, communication, and gathers of weights.
Format: "Trace Event Format", the JSON object form; times are microseconds since the first event.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_libra.internal import formatting
from tf_libra.reporting.records import event_reader, record_types
from tf_libra.reporting.records.clock_sync import ClockOffset, clock_offsets, shared_exchanges
from tf_libra.reporting.records.event_reader import EventFile, Summary
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.records.step import AllReduceSpan, StepRecord
from tf_libra.specs.plan import Plan

_RANK_FOLDER = re.compile(r"rank_\d+")


@dataclass(frozen=True)
class Run:
    """Content of a job's log directory.

    Attributes:
        plans: activated plans, by fingerprint.
        steps: steps of all ranks, by rank and time; of the last job, if several wrote to the
            directory.
        problems: one sentence per unreadable item.
    """

    plans: dict[str, PlanRecord]
    steps: tuple[StepRecord, ...]
    problems: tuple[str, ...]


def read_run(folder: Path, name: str | None = None) -> Run:
    """Reads all event files of the run below `folder`.

    Args:
        folder: a log directory.
        name: name of the run, as a path from `folder`; "." is `folder` itself. None: the only
            run.

    Raises:
        ImportError: TensorBoard is not installed.
        OSError: the folder does not exist.
        ValueError: no such run, several runs without a name, or no readable records of TF-Libra.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{str(folder)!r} is not a directory")
    paths = _files_of_run(folder, name)
    plans: dict[str, PlanRecord] = {}
    steps: dict[tuple[Path, int, str], list[StepRecord]] = {}
    problems: list[str] = []
    # By name, which orders files by creation.
    for path in sorted(paths, key=lambda path: (path.name, path)):
        fresh: dict[tuple[Path, int, str], list[StepRecord]] = {}
        file = event_reader.read(path)
        try:
            for kind, summary in _records(file):
                if kind == PlanRecord.KIND:
                    plan = PlanRecord.from_json(summary.text)
                    plans[plan.plan.fingerprint] = plan
                elif kind == StepRecord.KIND:
                    step = StepRecord.from_json(summary.text)
                    key = (path.parent, step.rank, step.function)
                    fresh.setdefault(key, []).append(step)
        except ValueError as error:
            problems.append(f"{str(path)!r}: {error}")
        if file.problem:
            problems.append(f"{str(path)!r}: {file.problem}")
        steps |= fresh  # a later file of the same function is of a later job
    if not plans and not steps:
        reason = "; ".join(problems) or "run a training step with tf_libra.optimize(logdir=...)"
        raise ValueError(f"{str(folder)!r} holds no readable records of a plan: {reason}")
    ordered = sorted(
        (step for run_steps in steps.values() for step in run_steps),
        key=lambda step: (step.rank, step.started_ns),
    )
    return Run(plans, tuple(ordered), tuple(problems))


def _files_of_run(folder: Path, name: str | None) -> list[Path]:
    """Returns the event files of a run, without those of runs inside its folder."""
    runs = run_folders(folder)
    names = {str(run.relative_to(folder)): run for run in runs}
    listing = ", ".join(map(repr, list(names)[:10]))
    listing += f" and {len(runs) - 10} more" if len(runs) > 10 else ""
    if name is None and len(runs) > 1:
        raise ValueError(f"{str(folder)!r} holds {len(runs)} runs, name one with --run: {listing}")
    own = runs[0] if name is None else names.get(str(Path(name)))
    if own is None:
        raise ValueError(
            f"run must be one of those in {str(folder)!r}, {listing}, got {name!r:.80}"
        )
    below = {run for run in runs if own in run.parents}
    return [path for path in own.glob(event_reader.PATTERN) if not below.intersection(path.parents)]


def run_folders(folder: Path) -> list[Path]:
    """Returns the folders at or below `folder` with a run: folders `rank_0` and so on.

    Without folders of ranks, as inside of one or in another layout, `folder` is the run.
    """
    found = {
        path.parent.parent
        for path in folder.glob(event_reader.PATTERN)
        if _RANK_FOLDER.fullmatch(path.parent.name) and path.parent != folder
    }
    return sorted(found) or [folder]


def _records(file: EventFile) -> Iterator[tuple[str, Summary]]:
    """Yields every record of a file with its kind; an unknown kind is a `ValueError`."""
    known: dict[bytes, str] = {}  # most summaries of a file are equal
    for summary in file.summaries:
        if summary.content not in known:
            known[summary.content] = record_types.parse_kind(summary.content)
        yield known[summary.content], summary


_STEPS, _COMPUTATION, _COMMUNICATION, _GATHERS = 0, 1, 2, 3
_THREADS = {
    _STEPS: "steps",
    _COMPUTATION: "computation",
    _COMMUNICATION: "communication",
    _GATHERS: "gathers",
}


def chrome_trace(run: Run) -> dict[str, Any]:
    """Returns the steps of a run as a JSON object.

    Computation is shown for rank 0, which traces it; steps and all-reduces for all ranks. Clocks
    are aligned to the lowest rank's; `otherData` has the offsets and their uncertainty.

    Raises:
        ValueError: no recorded step.
    """
    if not run.steps:
        raise ValueError("no step under a plan was recorded")
    ranks = sorted({step.rank for step in run.steps})
    by_rank = {rank: [step for step in run.steps if step.rank == rank] for rank in ranks}
    offsets = clock_offsets({rank: shared_exchanges(steps) for rank, steps in by_rank.items()})
    events: list[dict[str, Any]] = []
    for rank in ranks:
        events += _names(rank)
    origin_ns = min(step.started_ns - _offset_ns(offsets[step.rank]) for step in run.steps)
    for step in run.steps:
        shift_ns = origin_ns + _offset_ns(offsets[step.rank])
        record = run.plans.get(step.plan)
        events += _step_events(step, None if record is None else record.plan, shift_ns)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "producer": "tf-libra timeline",
            "started_ns": str(origin_ns),
            "clocks": {f"rank {rank}": _clock(offset) for rank, offset in offsets.items()},
        },
    }


def _offset_ns(offset: ClockOffset | None) -> int:
    return 0 if offset is None else offset.offset_ns


def _clock(offset: ClockOffset | None) -> str:
    if offset is None:
        return "not aligned: no exchange with the first rank"
    return (
        f"{formatting.time(offset.offset_ns * 1e-9)} ahead, between"
        f" {formatting.time(offset.lower_ns * 1e-9)} and {formatting.time(offset.upper_ns * 1e-9)}"
    )


def _names(rank: int) -> Iterator[dict[str, Any]]:
    def metadata(kind: str, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": arguments}

    yield metadata("process_name", 0, {"name": f"rank {rank}"})
    yield metadata("process_sort_index", 0, {"sort_index": rank})
    for thread, name in _THREADS.items():
        yield metadata("thread_name", thread, {"name": name})
        yield metadata("thread_sort_index", thread, {"sort_index": thread})


def _step_events(step: StepRecord, plan: Plan | None, shift_ns: int) -> Iterator[dict[str, Any]]:
    def span(thread: int, name: str, start_ns: int, end_ns: int, **arguments: Any) -> Any:
        return {
            "ph": "X",
            "name": name,
            "cat": _THREADS[thread],
            "pid": step.rank,
            "tid": thread,
            "ts": (start_ns - shift_ns) / 1e3,
            "dur": max(end_ns - start_ns, 0) / 1e3,
            "args": arguments,
        }

    yield span(
        _STEPS,
        f"step {step.step}",
        step.started_ns,
        step.finished_ns,
        function=step.function,
        plan=step.plan,
    )
    if step.backward_start_ns is not None and step.produced_ns:
        yield span(_COMPUTATION, "forward", step.started_ns, step.backward_start_ns)
        before_ns = step.backward_start_ns
        produced = sorted(enumerate(step.produced_ns), key=lambda item: (item[1], item[0]))
        for index, at_ns in produced:
            name, arguments = f"gradient {index}", {"tensor": index}
            if plan is not None and index < len(plan.tensor_names):
                name = plan.tensor_names[index]
                arguments["num_bytes"] = plan.num_bytes[index]
            yield span(_COMPUTATION, name, before_ns, max(at_ns, before_ns), **arguments)
            before_ns = max(at_ns, before_ns)
        yield span(_COMPUTATION, "after backward", before_ns, max(step.finished_ns, before_ns))
    for all_reduce in step.all_reduces:
        yield span(
            _COMMUNICATION,
            _all_reduce_name(all_reduce),
            all_reduce.started_ns,
            all_reduce.finished_ns,
            group=all_reduce.group,
            num_threads=all_reduce.num_threads,
            num_bytes=all_reduce.num_bytes,
            queued_us=(all_reduce.started_ns - all_reduce.enqueued_ns) / 1e3,
            **_tensors(all_reduce, plan),
        )
        if all_reduce.started_ns <= all_reduce.first_byte_ns <= all_reduce.finished_ns:
            yield span(_COMMUNICATION, "wait", all_reduce.started_ns, all_reduce.first_byte_ns)
            yield span(_COMMUNICATION, "exchange", all_reduce.first_byte_ns, all_reduce.finished_ns)
    for gather in step.gathers:
        names = [] if plan is None else [plan.tensor_names[i] for i in gather.tensors]
        name = "gather" if gather.tensors else "sums of parts"
        yield span(
            _GATHERS,
            name if gather.group < 0 else f"{name} {gather.group}",
            gather.started_ns,
            gather.finished_ns,
            num_threads=gather.num_threads,
            num_bytes=gather.num_bytes,
            tensors=names,
        )


def _all_reduce_name(all_reduce: AllReduceSpan) -> str:
    return "all-reduce" if all_reduce.group < 0 else f"group {all_reduce.group}"


def _tensors(all_reduce: AllReduceSpan, plan: Plan | None) -> dict[str, Any]:
    if plan is None or not 0 <= all_reduce.group < len(plan.groups):
        return {}
    group = plan.groups[all_reduce.group]
    return {"tensors": list(plan.tensor_names[group.start : group.stop])}
