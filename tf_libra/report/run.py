"""The records of a run, read from its log directory. Needs TensorBoard, for the files' format.

TensorFlow, which takes seconds to import, is not needed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_libra.records import values as records
from tf_libra.records.values import PLUGIN_NAME, PlanRecord, StepRecord

_EVENT_FILES = "**/*tfevents*"
_RANK_FOLDER = re.compile(r"rank_\d+")
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


def read_run(folder: Path) -> Run:
    """Reads all event files below `folder`.

    Raises:
        ImportError: TensorBoard is not installed.
        OSError: there is no such folder.
        ValueError: it holds several runs, or no records of TF-Libra that can be read.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{str(folder)!r} is no log directory")
    runs = run_folders(folder)
    if len(runs) > 1:
        named = ", ".join(repr(str(one.relative_to(folder))) for one in runs[:10])
        more = f" and {len(runs) - 10} more" if len(runs) > 10 else ""
        raise ValueError(f"{str(folder)!r} holds {len(runs)} runs, name one: {named}{more}")
    plans: dict[str, PlanRecord] = {}
    steps: dict[tuple[Path, int, str], list[StepRecord]] = {}
    problems: list[str] = []
    # By name, that is by the time they were made.
    for path in sorted(folder.glob(_EVENT_FILES), key=lambda path: (path.name, path)):
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
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.compat.tensorflow_stub import errors
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
    except ImportError:
        raise ImportError(_NEEDED) from None
    kinds: dict[str, str] = {}
    reader = PyRecordReader_New(str(path))
    while True:
        try:
            reader.GetNext()
        except errors.OutOfRangeError:
            return
        except errors.DataLossError:
            # A record that is just being written, or a damaged file: what came before counts.
            return
        try:
            event = event_pb2.Event.FromString(reader.record())
        except Exception as error:  # DecodeError moves between protobuf versions
            raise ValueError(f"no event file ({error})") from None
        for value in event.summary.value:
            # Readers take the metadata of a series from its first value.
            if value.metadata.plugin_data.plugin_name == PLUGIN_NAME:
                kinds[value.tag] = records.kind_of(value.metadata.plugin_data.content)
            kind = kinds.get(value.tag, "")
            if kind in records.KINDS:
                yield kind, _text(value)


def _text(value: Any) -> str:
    texts = value.tensor.string_val
    if len(texts) != 1:
        raise ValueError(f"{value.tag!r:.80} holds {len(texts)} strings instead of one record")
    return bytes(texts[0]).decode()
