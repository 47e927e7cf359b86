"""Serialization and predictions of tuning results."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.autotune.machine import Machine, drive
from tests.reporting.tensorboard import examples
from tf_libra.autotune import Budget, TuningResult
from tf_libra.cost_model import prediction_errors

WHOLE = examples.plan_record().conclusion


@pytest.mark.parametrize(
    "conclusion",
    [
        WHOLE,
        TuningResult(WHOLE.plan),
        TuningResult(WHOLE.plan, WHOLE.profile, notes=("too short",)),
        replace(WHOLE, samples=(), held_out_error=None),
        replace(WHOLE, max_model_error=0.05),
        replace(WHOLE, contention=1.7),
    ],
)
def test_result_survives_json(conclusion: TuningResult) -> None:
    assert TuningResult.from_json(conclusion.to_json()) == conclusion


def test_file_without_contention_is_read() -> None:
    document = WHOLE.to_document()
    del document["contention"]
    assert TuningResult.from_document(document) == replace(WHOLE, contention=None)


@pytest.mark.parametrize("max_steps", [1, 10, 25, 100])
def test_tuned_results_survive_json(max_steps: int) -> None:
    conclusion, _ = drive(Machine(noise=0.1), budget=Budget(max_steps, 1e9))
    assert TuningResult.from_json(conclusion.to_json()) == conclusion


def test_plan_with_too_many_threads_has_no_prediction() -> None:
    whole = replace(WHOLE, rest_seconds=0.01)
    assert whole.predicted(whole.plan) is not None
    assert (whole.predicted_step(whole.plan) or 0) > 0.01
    many = tuple(replace(group, num_threads=10**6) for group in whole.plan.groups)
    beyond = replace(whole.plan, groups=many)
    assert whole.predicted(beyond) is None and whole.predicted_step(beyond) is None


def test_earlier_plan_gets_the_new_prediction_and_no_notes() -> None:
    before = replace(WHOLE.plan, predicted_seconds=9.0, notes=("of then",))
    now = WHOLE.predicted(before)
    assert now is not None
    assert WHOLE.with_prediction(before) == replace(
        before, predicted_seconds=now.backward_seconds, notes=()
    )
    unknown = replace(before, predicted_seconds=None, notes=())
    assert TuningResult(WHOLE.plan).with_prediction(before) == unknown


def test_median_error_is_of_the_kind_that_is_missed_more() -> None:
    assert WHOLE.cost_model is not None
    errors = np.abs(prediction_errors(WHOLE.cost_model, WHOLE.samples))
    is_exclusive = np.array([s.residual_seconds > s.overlap_seconds for s in WHOLE.samples])
    assert 0 < is_exclusive.sum() < len(errors)
    medians = np.median(errors[is_exclusive]), np.median(errors[~is_exclusive])
    assert WHOLE.median_error == pytest.approx(max(medians))
    exclusive = replace(WHOLE, samples=tuple(s for s in WHOLE.samples if s.overlap_seconds == 0))
    assert exclusive.median_error == pytest.approx(
        np.median(np.abs(prediction_errors(WHOLE.cost_model, exclusive.samples)))
    )
    assert WHOLE.evidence.median_error == WHOLE.median_error
    alone = WHOLE.cost_model.with_workers(1)  # where nothing is all-reduced
    assert replace(WHOLE, cost_model=alone).median_error is None
    document = WHOLE.to_document() | {"median_error": 0.9}  # as earlier versions kept it
    assert TuningResult.from_document(document) == WHOLE


def test_is_fitted_needs_a_model_and_its_error() -> None:
    assert WHOLE.is_fitted
    assert not replace(WHOLE, samples=()).is_fitted
    assert not replace(WHOLE, cost_model=None).is_fitted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"plan": None}, "plan"),
        ({"profile": []}, "profile"),
        ({"samples": [3]}, r"samples\[0\] must be an object"),
        ({"held_out_error": -0.1}, "held_out_error must be at least 0"),
        ({"max_model_error": 0}, "max_model_error must be greater than 0"),
        ({"contention": 0.9}, "contention must be at least 1"),
        ({"notes": "one"}, "notes must be a list"),
        ({"is_complete": 1}, "is_complete must be true or false"),
        ({"more": 1}, "conclusion has unknown keys"),
        ({"version": 2}, "version of tf-libra conclusion must be 1, got 2"),
    ],
)
def test_invalid_field_is_named(changes: dict, message: str) -> None:
    document = json.loads(WHOLE.to_json()) | changes
    with pytest.raises(ValueError, match=message):
        TuningResult.from_json(json.dumps(document))
