"""View of measured whole steps."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.records.timeline import TimelineRecord
from tf_libra.reporting.tensorboard.views.trials import race_view


@dataclass(frozen=True)
class MeasuredRun:
    """Measurements of one run under a plan.

    Attributes:
      run: name of the run.
      record: its plan.
      step_seconds: whole steps under the plan.
      timeline: median of traced steps; None without any.
    """

    run: str
    record: PlanRecord
    step_seconds: tuple[float, ...] = ()
    timeline: TimelineRecord | None = None


def steps_view(record: PlanRecord, run: str, runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    """Return measured whole steps: interleaved trials, and other runs of the same job.

    `race` has the interleaved trials of `race_view`, which are comparable. `measured` has steps of
    other times, which are not; `is_own` marks those of the record's run. `rest_seconds` is the part
    of a step outside of backward (forward, optimizer), the same for every strategy: measured steps
    minus predicted backward. None if the difference is not positive, as the prediction is wrong.

    Args:
      record: the plan.
      run: run of its activation.
      runs: all measurements; other models and world sizes are ignored.
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
    """Return True for the same world size and gradients, in any order."""
    if one.plan.num_workers != other.plan.num_workers:
        return False
    return dict(zip(one.plan.tensor_names, one.plan.num_bytes, strict=True)) == dict(
        zip(other.plan.tensor_names, other.plan.num_bytes, strict=True)
    )
