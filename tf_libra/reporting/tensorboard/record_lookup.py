"""Lookup of plans and steps in a log directory."""

import contextlib
import hashlib
import re
from collections.abc import Sequence
from typing import Any

from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.records.step import StepRecord
from tf_libra.reporting.records.timeline import TimelineRecord
from tf_libra.reporting.tensorboard.cache import Cache
from tf_libra.reporting.tensorboard.log_source import LogSource

# Values of a plan series: one per activation, all of them shown.
_PLAN_POINTS = 100
# Traced steps of the median, out of TensorBoard's sample.
TRACED_STEPS = 50
# Points of a scalar series.
HISTORY_POINTS = 1000
_RANK = re.compile(r"(^|/)rank_\d+$")

# A page repeats its requests every few seconds during training.
_PLANS: Cache[PlanRecord] = Cache(64)
_STEPS: Cache[StepRecord] = Cache(1024)
_HEADINGS: Cache[dict[str, Any]] = Cache(4096)


class NotFoundError(Exception):
    """A name of the request is not in the log directory."""


def digest(document: str) -> bytes:
    """Returns a hash of a document, as a cache key."""
    return hashlib.blake2b(document.encode(), digest_size=16).digest()


def read_plan(source: LogSource, run: str, tag: str) -> PlanRecord:
    """Returns the last activation of a series' plan.

    Raises:
      NotFoundError: no such series.
      ValueError: the record is unreadable.
    """
    found = source.documents(run, tag)
    if not found:
        raise NotFoundError("no such plan in this run")
    return _plan_record(found[-1][1])


def read_timeline(source: LogSource, run: str, record: PlanRecord) -> TimelineRecord | None:
    """Returns the measured timeline of a plan; None without a readable one."""
    # After a repeated activation, only later steps count.
    since = source.documents(run, record.tag)[-1][0]
    dated = source.documents(run, record.tag_of(StepRecord.KIND), TRACED_STEPS)
    steps = [_step_record(document) for written, document in dated if written >= since]
    same = [step for step in steps if step.plan == record.plan.fingerprint]
    return TimelineRecord.from_steps(record.plan, same) or _read_stored_timeline(
        source, run, record
    )


def _read_stored_timeline(source: LogSource, run: str, record: PlanRecord) -> TimelineRecord | None:
    """Returns the timeline that an earlier version has written."""
    found = source.documents(run, record.tag_of(TimelineRecord.KIND))
    if not found:
        return None
    timeline = TimelineRecord.from_json(found[-1][1])
    return timeline if timeline.plan == record.plan.fingerprint else None


def read_steps(source: LogSource, run: str, record: PlanRecord, count: int) -> list[StepRecord]:
    """Returns at most `count` steps under a plan of every rank of a run's job."""
    tag = record.tag_of(StepRecord.KIND)
    steps: list[StepRecord] = []
    for other, tags in sorted(source.records().items()):
        if tag in tags and job_folder(other) == job_folder(run):
            steps += [_step_record(document) for _, document in source.documents(other, tag, count)]
    return [step for step in steps if step.plan == record.plan.fingerprint]


def job_folder(run: str) -> str:
    """Returns the folder of a job, the parent of its ranks' runs."""
    return run.rpartition("/")[0] if _RANK.search(run) else run


def activations(source: LogSource, run: str, tag: str) -> list[dict[str, Any]]:
    """Returns the description of each activation of a plan."""
    return [
        {"run": run, "tag": tag} | _heading(document) | {"written": written}
        for written, document in source.documents(run, tag, _PLAN_POINTS)
    ]


def sort_plans(plans: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sorts the activations of one function by time, over all jobs of a run."""
    return sorted(plans, key=lambda plan: (plan["run"], plan["function"], plan["written"]))


def list_plans(source: LogSource, run: str) -> list[dict[str, Any]]:
    """Returns the plans of one run; the listing of runs names the unreadable ones."""
    plans: list[dict[str, Any]] = []
    for tag, series in source.records().get(run, {}).items():
        with contextlib.suppress(ValueError):
            if record_types.parse_kind(series.content) == PlanRecord.KIND:
                plans += activations(source, run, tag)
    return sort_plans(plans)


def _heading(document: str) -> dict[str, Any]:
    return _HEADINGS.get(digest(document), lambda: _heading_of(_plan_record(document)))


def _heading_of(record: PlanRecord) -> dict[str, Any]:
    return {
        "function": record.function,
        "step": record.step,
        "origin": record.origin,
        "strategy": record.plan.strategy,
        "fingerprint": record.plan.fingerprint,
        "num_groups": len(record.plan.groups),
        "num_tensors": len(record.plan.tensor_names),
        "num_workers": record.plan.num_workers,
    }


def _plan_record(document: str) -> PlanRecord:
    return _PLANS.get(digest(document), lambda: PlanRecord.from_json(document))


def _step_record(document: str) -> StepRecord:
    return _STEPS.get(digest(document), lambda: StepRecord.from_json(document))
