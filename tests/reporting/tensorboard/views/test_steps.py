"""The runs whose steps are compared with a plan, and the part of a step that no plan changes."""

from dataclasses import replace

import pytest

from tests.reporting.tensorboard import examples
from tf_libra import strategies
from tf_libra.reporting.tensorboard.views.steps import MeasuredRun, steps_view

RECORD = examples.plan_record()
TIMELINE = RECORD.conclusion.predicted(RECORD.plan)


def test_what_is_left_of_a_step_is_the_rest_of_it_and_else_nothing_is_said() -> None:
    assert TIMELINE is not None
    backward = TIMELINE.backward_seconds

    def rest(*seconds: float, run: str = "own") -> float | None:
        return steps_view(RECORD, "own", [MeasuredRun(run, RECORD, seconds)])["rest_seconds"]

    assert rest(9.0, backward + 0.25, backward) == pytest.approx(0.25)
    assert rest(backward) is None and rest(backward * (1 + 1e-9)) is not None
    assert rest() is None
    # Of another run, which may have been on another machine.
    assert rest(9.0, run="other") is None


def test_runs_of_other_jobs_are_left_out() -> None:
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
    assert [one["run"] for one in view["measured"]] == ["own", "backwards", "other"]
    own, _, others = view["measured"]
    assert own["is_own"] and own["num_steps"] == 3 and own["step_seconds"] == 0.5
    assert own["backward_seconds"] == examples.timeline_record(RECORD).backward.median
    assert not others["is_own"] and others["backward_seconds"] is None
    assert (others["strategy"], others["fingerprint"]) == ("wfbp", other.plan.fingerprint)
    assert view["race"] is None
