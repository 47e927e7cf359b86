"""Ranking of model forms on machines that obey one of them."""

import dataclasses

import numpy as np
import pytest

from tests.autotune.machine import MODEL
from tests.autotune.test_calibration import AFTER, BEFORE, WORK, a_profile
from tf_libra.autotune import model_selection, random_plans
from tf_libra.autotune.model_selection import ModelForm, evaluate_forms
from tf_libra.autotune.step_times import StepTimes
from tf_libra.cost_model import ContentionModel, CostModel
from tf_libra.simulation import simulate

PROFILE = a_profile(0, num_tensors=8)
LIBRAS = dataclasses.replace(MODEL, num_workers=2)
PLANS = random_plans(PROFILE, (1, 2, 4), 2, 5, seed=1)


def steps_on(machine: CostModel, count: int = len(PLANS)) -> list[StepTimes]:
    """Returns the steady-state step of each plan on a machine that obeys a model."""
    found = []
    for plan in PLANS[:count]:
        timeline = simulate(PROFILE, plan, machine)
        spans = [(group.start_seconds, group.end_seconds) for group in timeline.groups]
        ready = np.array([group.ready_seconds for group in timeline.groups])
        seconds = BEFORE + timeline.backward_seconds + AFTER
        starts, ends = np.array(spans).T
        found.append(
            StepTimes(plan, seconds, np.array(spans) + BEFORE, ready + BEFORE, ends - starts, 3)
        )
    return found


def judged(
    steps: list[StepTimes],
    model: ContentionModel = LIBRAS,
    num_tested: int | None = None,
    before_seconds: float | None = BEFORE,
) -> list[ModelForm]:
    """Returns forms judged by a model that was fitted without any plan's steps."""
    without = {step.plan.fingerprint: model for step in steps[:num_tested]}
    return evaluate_forms(PROFILE, steps, without, model, before_seconds)


@pytest.fixture(scope="module")
def both() -> dict[str, list[ModelForm]]:
    # LIBRA's form of a machine that shares cores is far from it, whatever it is fitted to.
    wrong = dataclasses.replace(LIBRAS, compute=(1.0, 0.0), overlapped=(1e10, 1e10, 1.0))
    return {
        "contention": judged(steps_on(LIBRAS)),
        "CPU share": judged(steps_on(WORK), wrong),
    }


@pytest.mark.parametrize("truth", ["contention", "CPU share"])
def test_true_form_is_ranked_first(both: dict[str, list[ModelForm]], truth: str) -> None:
    first, second = both[truth]
    assert first.name == truth != second.name
    assert first.error <= second.error
    assert first.held_out_error < 0.02
    for form in (first, second):
        assert form.held_out_backward_error is not None
        assert form.error == form.held_out_error + form.held_out_backward_error
        assert form.samples and form.median_error is not None


def test_libras_form_has_to_be_clearly_better(both: dict[str, list[ModelForm]]) -> None:
    [libras, cpu_share] = both["contention"]
    for ratio, first in ((1.5, "CPU share"), (2.5, "contention")):
        error = ratio * libras.error / 2
        other = dataclasses.replace(cpu_share, held_out_error=error, held_out_backward_error=error)
        assert min(libras, other, key=lambda form: form.rank).name == first


def test_each_plan_is_predicted_by_a_fit_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_on(LIBRAS, 4)
    seen: list[list[str]] = []
    beside = model_selection.calibrate_contention_model

    def kept(model: object, profile: object, steps: list[StepTimes], before: object) -> object:
        seen.append([step.plan.fingerprint for step in steps])
        return found

    found = beside(LIBRAS, PROFILE, steps, BEFORE)
    monkeypatch.setattr(model_selection, "calibrate_contention_model", kept)
    monkeypatch.setattr(model_selection, "calibrate", lambda *_: found)
    every = [step.plan.fingerprint for step in steps]
    judged(steps, num_tested=2)
    assert seen == [every[1:], [every[0], *every[2:]], every]


def test_forms_need_three_other_plans() -> None:
    steps = steps_on(LIBRAS, 4)
    assert judged(steps[:3]) == [] == judged(steps, num_tested=0)
    assert len(judged(steps, num_tested=1)) == 2


def test_unknown_start_of_backward_leaves_its_error_unknown() -> None:
    for form in judged(steps_on(LIBRAS, 4), num_tested=1, before_seconds=None):
        assert form.held_out_backward_error is None and form.error == form.held_out_error


def test_form_that_cannot_predict_is_omitted() -> None:
    """LIBRA's form predicts that four threads stop all computation."""
    steep = dataclasses.replace(LIBRAS, compute=(1.0, 0.3))
    [only] = judged(steps_on(LIBRAS, 4), steep, num_tested=1)
    assert only.name == "CPU share"
