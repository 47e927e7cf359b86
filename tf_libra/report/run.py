"""The records of a run, read from its log directory. Needs TensorBoard, for the files' format.

TensorFlow, which takes seconds to import, is not needed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_libra.records import kinds
from tf_libra.records.kinds import PLUGIN_NAME
from tf_libra.records.plan import PlanRecord
from tf_libra.records.step import StepRecord

_EVENT_FILES = "**/*tfevents*"
_RANK_FOLDER = re.compile(r"rank_\d+")
# What stands around a record: its length, and a checksum of that and of the content.
_FRAME_BYTES = 16
_NEEDED = (
    "reading a log directory needs TensorBoard, which is not installed (pip install"
    " tf-libra[tensorboard])"
)


@dataclass(frozen=True)
class Run:
    """What a job has left in its log directory.

    Attributes:
        plans: that came into force, by fingerprint.
        steps: of all ranks, by rank and time; where several jobs have written to the same
            directory, of the last one.
        problems: what could not be read, each a sentence.
    """

    plans: dict[str, PlanRecord]
    steps: tuple[StepRecord, ...]
    problems: tuple[str, ...]


def read_run(folder: Path, name: str | None = None) -> Run:
    """Reads all event files of the run below `folder`.

    Args:
        folder: a log directory.
        name: of the run there, as a path from `folder`; "." is the one of `folder` itself. By
            default there has to be one only.

    Raises:
        ImportError: TensorBoard is not installed.
        OSError: there is no such folder.
        ValueError: there is no such run, several and none named, or no records of TF-Libra that
            can be read.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{str(folder)!r} is no log directory")
    paths = _files_of_run(folder, name)
    plans: dict[str, PlanRecord] = {}
    steps: dict[tuple[Path, int, str], list[StepRecord]] = {}
    problems: list[str] = []
    # By name, that is by the time they were made.
    for path in sorted(paths, key=lambda path: (path.name, path)):
        fresh: dict[tuple[Path, int, str], list[StepRecord]] = {}
        try:
            for kind, document in _documents(path):
                if kind == PlanRecord.KIND:
                    plan = PlanRecord.from_json(document)
                    plans[plan.plan.fingerprint] = plan
                elif kind == StepRecord.KIND:
                    step = StepRecord.from_json(document)
                    key = (path.parent, step.rank, step.function)
                    fresh.setdefault(key, []).append(step)
        except ValueError as error:
            problems.append(f"{str(path)!r}: {error}")
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
    """The event files of a run, without those of runs that its folder contains."""
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
    return [path for path in own.glob(_EVENT_FILES) if not below.intersection(path.parents)]


def damaged_files(folder: Path) -> dict[Path, str]:
    """The event files below `folder` that cannot be read to their end, each with the reason."""
    problems: dict[Path, str] = {}
    for path in sorted(folder.glob(_EVENT_FILES)):
        try:
            for _ in _events(path):
                pass
        except ValueError as error:
            problems[path] = str(error)
    return problems


def run_folders(folder: Path) -> list[Path]:
    """The folders at or below `folder` that hold a run each, as `rank_0` and so on of its ranks.

    Where ranks' folders are not seen, because it is one of them or has another layout, `folder` is
    taken as the run.
    """
    found = {
        path.parent.parent
        for path in folder.glob(_EVENT_FILES)
        if _RANK_FOLDER.fullmatch(path.parent.name) and path.parent != folder
    }
    return sorted(found) or [folder]


def _documents(path: Path) -> Iterator[tuple[str, str]]:
    """Kind and text of every record in an event file, as far as it was written.

    Raises:
        ValueError: something in it is no record, or not of this version.
    """
    kind_by_tag: dict[str, str] = {}
    for event in _events(path):
        for value in event.summary.value:
            # Readers take the metadata of a series from its first value.
            if value.metadata.plugin_data.plugin_name == PLUGIN_NAME:
                kind_by_tag[value.tag] = kinds.kind_of(value.metadata.plugin_data.content)
            kind = kind_by_tag.get(value.tag, "")
            if kind in kinds.KINDS:
                yield kind, _text(value)


def _events(path: Path) -> Iterator[Any]:
    """The events of a file, as far as it was written: the last may be just being written.

    Raises:
        ValueError: it is damaged; what comes before was returned.
    """
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.compat.tensorflow_stub import errors
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
    except ImportError:
        raise ImportError(_NEEDED) from None
    reader = PyRecordReader_New(str(path))
    at = 0  # where the next record begins, in bytes
    while True:
        try:
            reader.GetNext()
        except errors.OutOfRangeError:
            return
        except errors.DataLossError as error:
            if "truncated" in str(error):
                return
            what = f"damaged from byte {at} on" if at else "no event file"
            raise ValueError(f"{what} (a checksum is wrong)") from None
        content = reader.record()
        at += len(content) + _FRAME_BYTES
        try:
            event = event_pb2.Event.FromString(content)
        except Exception as error:  # DecodeError moves between protobuf versions
            raise ValueError(f"no event file ({error})") from None
        yield event


def _text(value: Any) -> str:
    texts = value.tensor.string_val
    if len(texts) != 1:
        raise ValueError(f"{value.tag!r:.80} holds {len(texts)} strings instead of one record")
    return bytes(texts[0]).decode()
