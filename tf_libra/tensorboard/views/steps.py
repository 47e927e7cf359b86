"""Whole steps, as measured."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tf_libra.records.plan import PlanRecord
from tf_libra.records.timeline import TimelineRecord
from tf_libra.tensorboard.views.race import race_view


@dataclass(frozen=True)
class MeasuredRun:
    """What one run has measured under a plan, to be laid beside predictions.

    Attributes:
      run: the run's name.
      record: its plan.
      step_seconds: whole steps under the plan.
      timeline: traced steps; None without any.
    """

    run: str
    record: PlanRecord
    step_seconds: tuple[float, ...] = ()
    timeline: TimelineRecord | None = None


def steps_view(record: PlanRecord, run: str, runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    """Whole steps as measured: in turns, and in the record's run and others of the same job.

    `race` has the plans whose steps took turns, as `race_view` has them: these are compared. In
    `measured` is what ran at other times, which compares with nothing; `is_own` says that it was in
    the record's own run. A step is backward and the rest of it (forward computation, the
    optimizer), `rest_seconds`, which no strategy changes: whole steps under the plan less predicted
    backward time. None where nothing is left: then the prediction is wrong, and says nothing of
    steps.

    Args:
      record: of the plan.
      run: in which it came into force.
      runs: what was measured; those of other models or world sizes are left out.
    """
    alike = [one for one in runs if _same_job(one.record, record)]
    own = [
        one
        for one in alike
        if one.run == run and one.record.plan.fingerprint == record.plan.fingerprint
    ]
    seconds = [s for one in own for s in one.step_seconds]
    timeline = record.conclusion.predicted(record.plan)
    rest = None
    if seconds and timeline is not None:
        left = statistics.median(seconds) - timeline.backward_seconds
        rest = left if left > 0 else None
    measured = [
        {
            "run": one.run,
            "is_own": one.run == run,
            "strategy": one.record.plan.strategy,
            "threads": sorted({g.num_threads for g in one.record.plan.groups}),
            "num_steps": len(one.step_seconds),
            "step_seconds": statistics.median(one.step_seconds),
            "backward_seconds": None if one.timeline is None else one.timeline.backward.median,
            "fingerprint": one.record.plan.fingerprint,
        }
        for one in alike
        if one.step_seconds
    ]
    return {
        "rest_seconds": rest,
        "race": race_view(record.conclusion.race),
        "measured": measured,
    }


def _same_job(one: PlanRecord, other: PlanRecord) -> bool:
    """Of the same model, whatever order its gradients were found in, and world size."""
    if one.plan.num_workers != other.plan.num_workers:
        return False
    return dict(zip(one.plan.tensor_names, one.plan.num_bytes, strict=True)) == dict(
        zip(other.plan.tensor_names, other.plan.num_bytes, strict=True)
    )
