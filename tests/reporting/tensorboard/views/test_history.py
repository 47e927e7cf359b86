"""Steps and plans over time."""

import pytest

from tf_libra.reporting.records import scalar_tags
from tf_libra.reporting.tensorboard.views.history import history_view

PLANS = [
    {"step": 10, "predicted_seconds": 2.0},
    {"step": 20, "predicted_seconds": None},
    {"step": 30, "predicted_seconds": 3.0},
]


def test_backward_is_held_against_what_the_plan_of_its_step_predicted() -> None:
    steps = {9: 1.0, 10: 4.0, 19: 1.0, 20: 1.0, 29: 1.0, 30: 4.0, 40: 0.0}
    view = history_view(PLANS, {scalar_tags.BACKWARD_SECONDS: list(steps.items())})
    assert view["errors"] == [[10, -0.5], [19, 1.0], [30, -0.25]]
    assert view["plans"] == PLANS
    assert history_view([], {scalar_tags.BACKWARD_SECONDS: [(5, 1.0)]})["errors"] == []


def test_every_series_is_there_whatever_was_written() -> None:
    view = history_view([], {scalar_tags.STEP_SECONDS: [(1, 0.5), (2, 0.25)]})
    assert view["series"].keys() == set(scalar_tags.HISTORY)
    assert view["series"][scalar_tags.STEP_SECONDS] == [[1, 0.5], [2, 0.25]]
    assert not any(view["series"][name] for name in scalar_tags.HISTORY[1:])
    assert view["errors"] == view["drifts"] == []


def test_drifts_and_returns_are_in_order_each_with_what_was_expected() -> None:
    view = history_view(
        [],
        {
            scalar_tags.DRIFTED_STEP_SECONDS: [(5, 2.0), (9, 3.0), (11, 4.0)],
            scalar_tags.RETURNED_STEP_SECONDS: [(7, 1.0)],
            # The last point of a file that is being written may be there without the other.
            scalar_tags.EXPECTED_STEP_SECONDS: [(5, 1.0), (7, 1.25), (9, 1.5)],
        },
    )
    told = [(one["step"], one["is_back"], one["measured_seconds"]) for one in view["drifts"]]
    assert told == [(5, False, 2.0), (7, True, 1.0), (9, False, 3.0)]
    assert [one["expected_seconds"] for one in view["drifts"]] == pytest.approx([1.0, 1.25, 1.5])
