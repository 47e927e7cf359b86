"""Views of measured steps and of their history."""

from dataclasses import replace

import pytest

from tests.reporting.tensorboard import examples
from tf_libra import strategies
from tf_libra.reporting.records import record_types
from tf_libra.reporting.tensorboard.views.steps import MeasuredRun, history_view, steps_view

RECORD = examples.plan_record()
TIMELINE = RECORD.conclusion.predicted(RECORD.plan)


def test_rest_of_a_step_is_none_unless_positive() -> None:
    assert TIMELINE is not None
    backward = TIMELINE.backward_seconds

    def rest(*seconds: float, run: str = "own") -> float | None:
        return steps_view(RECORD, "own", [MeasuredRun(run, RECORD, seconds)])["rest_seconds"]

    assert rest(9.0, backward + 0.25, backward) == pytest.approx(0.25)
    assert rest(backward) is None and rest(backward * (1 + 1e-9)) is not None
    assert rest() is None
    # Of another run, which may have been on another machine.
    assert rest(9.0, run="other") is None


def test_runs_of_other_jobs_are_ignored() -> None:
    """Runs of this job have the same tensors in any order, whatever plan they ran under."""
    order = tuple(reversed(range(len(RECORD.plan.tensor_names))))
    reversed_plan = replace(
        RECORD.plan,
        tensor_names=tuple(RECORD.plan.tensor_names[i] for i in order),
        num_bytes=tuple(RECORD.plan.num_bytes[i] for i in order),
    )
    conclusion = replace(RECORD.conclusion, plan=reversed_plan, profile=None)
    backwards = replace(RECORD, conclusion=conclusion)
    other = examples.plan_record(strategy=strategies.Wfbp())
    larger = examples.plan_record(num_tensors=25)
    of_three = examples.given_record(replace(RECORD.plan, num_workers=3), RECORD.strategy)
    runs = [
        MeasuredRun("own", RECORD, (0.25, 0.5, 0.75), examples.timeline_record(RECORD)),
        MeasuredRun("backwards", backwards, (0.5,)),
        MeasuredRun("other", other, (0.5,)),
        MeasuredRun("larger", larger, (0.5,)),
        MeasuredRun("of three", of_three, (0.5,)),
        MeasuredRun("without steps", RECORD),
    ]
    view = steps_view(RECORD, "own", runs)
    assert [measured["run"] for measured in view["measured"]] == ["own", "backwards", "other"]
    own, _, others = view["measured"]
    assert own["is_own"] and own["num_steps"] == 3 and own["step_seconds"] == 0.5
    assert own["backward_seconds"] == examples.timeline_record(RECORD).backward.median
    assert not others["is_own"] and others["backward_seconds"] is None
    assert (others["strategy"], others["fingerprint"]) == ("wfbp", other.plan.fingerprint)
    assert view["race"] is None


PLANS = [
    {"step": 10, "predicted_seconds": 2.0},
    {"step": 20, "predicted_seconds": None},
    {"step": 30, "predicted_seconds": 3.0},
]


def test_errors_use_the_prediction_of_the_active_plan() -> None:
    steps = {9: 1.0, 10: 4.0, 19: 1.0, 20: 1.0, 29: 1.0, 30: 4.0, 40: 0.0}
    view = history_view(PLANS, {record_types.BACKWARD_SECONDS: list(steps.items())})
    assert view["errors"] == [[10, -0.5], [19, 1.0], [30, -0.25]]
    assert view["plans"] == PLANS
    assert history_view([], {record_types.BACKWARD_SECONDS: [(5, 1.0)]})["errors"] == []


def test_missing_series_are_empty() -> None:
    view = history_view([], {record_types.STEP_SECONDS: [(1, 0.5), (2, 0.25)]})
    assert view["series"].keys() == set(record_types.SCALAR_TAGS)
    assert view["series"][record_types.STEP_SECONDS] == [[1, 0.5], [2, 0.25]]
    assert not any(view["series"][name] for name in record_types.SCALAR_TAGS[1:])
    assert view["errors"] == view["drifts"] == []


def test_drifts_are_ordered_by_step() -> None:
    view = history_view(
        [],
        {
            record_types.DRIFTED_STEP_SECONDS: [(5, 2.0), (9, 3.0), (11, 4.0)],
            record_types.RETURNED_STEP_SECONDS: [(7, 1.0)],
            # The last point of a file that is being written may be there without the other.
            record_types.EXPECTED_STEP_SECONDS: [(5, 1.0), (7, 1.25), (9, 1.5)],
        },
    )
    reported = [
        (drift["step"], drift["is_back"], drift["measured_seconds"]) for drift in view["drifts"]
    ]
    assert reported == [(5, False, 2.0), (7, True, 1.0), (9, False, 3.0)]
    assert [drift["expected_seconds"] for drift in view["drifts"]] == pytest.approx(
        [1.0, 1.25, 1.5]
    )
