"""View of measured whole steps."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_libra.reporting.records import record_types
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
    """Returns measured whole steps: interleaved trials, and other runs of the same job.

    `race` has the interleaved trials of `race_view`, which are comparable. `measured` has steps of
    other times, which are not; `is_own` marks those of the record's run. `rest_seconds` is the part
    of a step outside of backward (forward, optimizer), the same for every strategy: measured steps
    minus predicted backward. None if the difference is not positive, as the prediction is wrong.

    Args:
      record: the plan.
      run: run of its activation.
      runs: all measurements; other models and world sizes are ignored.
    """
    alike = [measurement for measurement in runs if _same_job(measurement.record, record)]
    own = [
        measurement
        for measurement in alike
        if measurement.run == run and measurement.record.plan.fingerprint == record.plan.fingerprint
    ]
    seconds = [s for measurement in own for s in measurement.step_seconds]
    timeline = record.conclusion.predicted(record.plan)
    rest = None
    if seconds and timeline is not None:
        left = statistics.median(seconds) - timeline.backward_seconds
        rest = left if left > 0 else None
    measured = [
        {
            "run": measurement.run,
            "is_own": measurement.run == run,
            "strategy": measurement.record.plan.strategy,
            "threads": sorted({g.num_threads for g in measurement.record.plan.groups}),
            "num_steps": len(measurement.step_seconds),
            "step_seconds": statistics.median(measurement.step_seconds),
            "backward_seconds": None
            if measurement.timeline is None
            else measurement.timeline.backward.median,
            "fingerprint": measurement.record.plan.fingerprint,
        }
        for measurement in alike
        if measurement.step_seconds
    ]
    return {
        "rest_seconds": rest,
        "race": race_view(record.conclusion.race),
        "measured": measured,
    }


def _same_job(record: PlanRecord, other: PlanRecord) -> bool:
    """Returns True for the same world size and gradients, in any order."""
    if record.plan.num_workers != other.plan.num_workers:
        return False
    return dict(zip(record.plan.tensor_names, record.plan.num_bytes, strict=True)) == dict(
        zip(other.plan.tensor_names, other.plan.num_bytes, strict=True)
    )


# Points (step, value) of a series.
Points = Sequence[tuple[int, float]]


def history_view(
    plans: Sequence[Mapping[str, Any]], series: Mapping[str, Points]
) -> dict[str, Any]:
    """Returns the recorded series, the errors of backward's prediction, and drifts.

    Args:
      plans: activated plans in order, each with `step` and `predicted_seconds`.
      series: series by the names in `record_types.SCALAR_TAGS`; unwritten series are missing.
    """
    points = {
        name: [list(point) for point in series.get(name, ())] for name in record_types.SCALAR_TAGS
    }
    return {
        "plans": list(plans),
        "series": points,
        "errors": _errors(plans, points),
        "drifts": _drifts(points),
    }


def _drifts(series: Mapping[str, list[list[float]]]) -> list[dict[str, Any]]:
    """Returns begins and ends of drifts."""
    expected = {point[0]: point[1] for point in series[record_types.EXPECTED_STEP_SECONDS]}
    return sorted(
        (
            {
                "step": step,
                "measured_seconds": seconds,
                "expected_seconds": expected[step],
                "is_back": name == record_types.RETURNED_STEP_SECONDS,
            }
            for name in (record_types.DRIFTED_STEP_SECONDS, record_types.RETURNED_STEP_SECONDS)
            for step, seconds in series[name]
            if step in expected
        ),
        key=lambda drift: drift["step"],
    )


def _errors(
    plans: Sequence[Mapping[str, Any]], series: Mapping[str, list[list[float]]]
) -> list[list[float]]:
    """Returns relative errors of predicted backward time: [step, predicted / measured - 1]."""
    found = []
    for step, seconds in series[record_types.BACKWARD_SECONDS]:
        before = [plan for plan in plans if plan["step"] <= step]
        predicted = before[-1]["predicted_seconds"] if before else None
        if predicted is not None and seconds > 0:
            found.append([step, predicted / seconds - 1])
    return found
