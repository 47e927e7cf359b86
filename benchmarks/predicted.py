"""Predictions of plans that planners have made for a profile."""

from typing import Protocol


class _Planned(Protocol):
    @property
    def predicted_seconds(self) -> float | None: ...


def predicted_seconds(plan: _Planned) -> float:
    """Returns the predicted seconds of a plan, which only a user-provided one lacks."""
    assert plan.predicted_seconds is not None, plan
    return plan.predicted_seconds
