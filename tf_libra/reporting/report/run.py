"""Reader of one run's plans and steps from its log directory."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tf_libra.reporting.records import event_reader, record_types
from tf_libra.reporting.records.event_reader import EventFile, Summary
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.records.step import StepRecord

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
    """Read all event files of the run below `folder`.

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
        raise NotADirectoryError(f"{str(folder)!r} is no log directory")
    paths = _files_of_run(folder, name)
    plans: dict[str, PlanRecord] = {}
    steps: dict[tuple[Path, int, str], list[StepRecord]] = {}
    problems: list[str] = []
    # By name, which orders files by creation.
    for path in sorted(paths, key=lambda path: (path.name, path)):
        fresh: dict[tuple[Path, int, str], list[StepRecord]] = {}
        file = event_reader.read(path)
        try:
            for kind, one in _records(file):
                if kind == PlanRecord.KIND:
                    plan = PlanRecord.from_json(one.text)
                    plans[plan.plan.fingerprint] = plan
                elif kind == StepRecord.KIND:
                    step = StepRecord.from_json(one.text)
                    key = (path.parent, step.rank, step.function)
                    fresh.setdefault(key, []).append(step)
        except ValueError as error:
            problems.append(f"{str(path)!r}: {error}")
        if file.problem:
            problems.append(f"{str(path)!r}: {file.problem}")
        steps |= fresh  # a later file of the same function is of a later job
    if not plans and not steps:
        what = "; ".join(problems) or "run a training step with tf_libra.optimize(logdir=...)"
        raise ValueError(f"{str(folder)!r} holds no records of a plan that can be read: {what}")
    ordered = sorted(
        (step for one in steps.values() for step in one),
        key=lambda step: (step.rank, step.started_ns),
    )
    return Run(plans, tuple(ordered), tuple(problems))


def _files_of_run(folder: Path, name: str | None) -> list[Path]:
    """Return the event files of a run, without those of runs inside its folder."""
    runs = run_folders(folder)
    names = {str(one.relative_to(folder)): one for one in runs}
    told = ", ".join(map(repr, list(names)[:10]))
    told += f" and {len(runs) - 10} more" if len(runs) > 10 else ""
    if name is None and len(runs) > 1:
        raise ValueError(f"{str(folder)!r} holds {len(runs)} runs, name one with --run: {told}")
    own = runs[0] if name is None else names.get(str(Path(name)))
    if own is None:
        raise ValueError(f"run must be one of those in {str(folder)!r}, {told}, got {name!r:.80}")
    below = {one for one in runs if own in one.parents}
    return [path for path in own.glob(event_reader.PATTERN) if not below.intersection(path.parents)]


def run_folders(folder: Path) -> list[Path]:
    """Return the folders at or below `folder` with a run: folders `rank_0` and so on.

    Without folders of ranks, as inside of one or in another layout, `folder` is the run.
    """
    found = {
        path.parent.parent
        for path in folder.glob(event_reader.PATTERN)
        if _RANK_FOLDER.fullmatch(path.parent.name) and path.parent != folder
    }
    return sorted(found) or [folder]


def _records(file: EventFile) -> Iterator[tuple[str, Summary]]:
    """Yield every record of a file with its kind; an unknown kind is a `ValueError`."""
    known: dict[bytes, str] = {}  # most summaries of a file are equal
    for one in file.summaries:
        if one.content not in known:
            known[one.content] = record_types.kind_of(one.content)
        yield known[one.content], one
