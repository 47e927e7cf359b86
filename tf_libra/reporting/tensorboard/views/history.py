"""View of a training function's steps and plans over time."""

from collections.abc import Mapping, Sequence
from typing import Any

from tf_libra.reporting.records import scalar_tags

# Points (step, value) of a series.
Points = Sequence[tuple[int, float]]


def history_view(
    plans: Sequence[Mapping[str, Any]], series: Mapping[str, Points]
) -> dict[str, Any]:
    """Return the recorded series, the errors of backward's prediction, and drifts.

    Args:
      plans: activated plans in order, each with `step` and `predicted_seconds`.
      series: series by the names in `scalar_tags.HISTORY`; unwritten series are missing.
    """
    points = {name: [list(one) for one in series.get(name, ())] for name in scalar_tags.HISTORY}
    return {
        "plans": list(plans),
        "series": points,
        "errors": _errors(plans, points),
        "drifts": _drifts(points),
    }


def _drifts(series: Mapping[str, list[list[float]]]) -> list[dict[str, Any]]:
    """Return begins and ends of drifts."""
    expected = {point[0]: point[1] for point in series[scalar_tags.EXPECTED_STEP_SECONDS]}
    return sorted(
        (
            {
                "step": step,
                "measured_seconds": seconds,
                "expected_seconds": expected[step],
                "is_back": name == scalar_tags.RETURNED_STEP_SECONDS,
            }
            for name in (scalar_tags.DRIFTED_STEP_SECONDS, scalar_tags.RETURNED_STEP_SECONDS)
            for step, seconds in series[name]
            if step in expected
        ),
        key=lambda drift: drift["step"],
    )


def _errors(
    plans: Sequence[Mapping[str, Any]], series: Mapping[str, list[list[float]]]
) -> list[list[float]]:
    """Return relative errors of predicted backward time: [step, predicted / measured - 1]."""
    found = []
    for step, seconds in series[scalar_tags.BACKWARD_SECONDS]:
        before = [plan for plan in plans if plan["step"] <= step]
        predicted = before[-1]["predicted_seconds"] if before else None
        if predicted is not None and seconds > 0:
            found.append([step, predicted / seconds - 1])
    return found
