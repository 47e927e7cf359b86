"""Cross-validation on machines that obey a CPU-share model."""

from dataclasses import replace

import numpy as np
import pytest

from tests.autotune.test_calibration import AFTER, BEFORE, WORK, a_profile, family
from tf_libra.autotune import cross_validation, random_plans
from tf_libra.autotune.calibration import Calibration, calibrate
from tf_libra.autotune.cross_validation import cross_validate
from tf_libra.autotune.step_times import StepTimes
from tf_libra.simulation import simulate

PROFILE = a_profile(0, num_tensors=8)
PLANS = random_plans(PROFILE, (1, 2, 4), 2, 5, seed=1)


def steps_on(count: int = len(PLANS)) -> list[StepTimes]:
    """Returns the steady-state step of each plan on a machine that obeys `WORK`."""
    found = []
    for plan in PLANS[:count]:
        timeline = simulate(PROFILE, plan, WORK)
        spans = [(group.start_seconds, group.end_seconds) for group in timeline.groups]
        ready = np.array([group.ready_seconds for group in timeline.groups])
        seconds = BEFORE + timeline.backward_seconds + AFTER
        starts, ends = np.array(spans).T
        found.append(
            StepTimes(plan, seconds, np.array(spans) + BEFORE, ready + BEFORE, ends - starts, 3)
        )
    return found


def test_true_model_has_small_errors() -> None:
    errors = cross_validate(PROFILE, steps_on(), family(WORK), BEFORE)
    assert errors.step < 0.02
    assert errors.backward is not None and errors.backward < 0.02


def test_each_plan_is_predicted_by_a_fit_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, seen = steps_on(4), []
    exclusive = [replace(steps[0], seconds=1.0)]

    def kept(profile: object, others: list[StepTimes], *_: object) -> Calibration:
        seen.append(others)
        return calibrate(PROFILE, steps, family(WORK), BEFORE)

    monkeypatch.setattr(cross_validation, "calibrate", kept)
    cross_validate(PROFILE, steps, family(WORK), BEFORE, exclusive)
    assert len(seen) == len(steps)
    for step, others in zip(steps, seen, strict=True):
        assert others == [*(other for other in steps if other is not step), *exclusive]


def test_unknown_start_of_backward_leaves_its_error_unknown() -> None:
    assert cross_validate(PROFILE, steps_on(4), family(WORK)).backward is None
