"""Models and plans from observed steps, with fallbacks."""

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from tests.autotune.machine import (
    AFTER,
    BEFORE,
    MODEL,
    NUM_WORKERS,
    PROFILE,
    SIZES,
    Machine,
    at_pace,
    drive,
    slower,
)
from tf_libra import strategies
from tf_libra.autotune import (
    Budget,
    Phase,
    TrialResult,
    fit_and_plan,
    model_selection,
    random_plans,
    trial_schedule,
)
from tf_libra.cost_model import (
    ContentionModel,
    ProcessorModel,
    median_error,
    prediction_errors,
)
from tf_libra.cost_model import fit as fit_model
from tf_libra.planning import make_plan
from tf_libra.simulation import simulate
from tf_libra.specs.plan import Plan


def test_accumulation_steps_do_not_count_as_model_error() -> None:
    class Accumulating(Machine):
        """All-reduces in every other step."""

        count = 0

        def run(self, plan: Plan) -> TrialResult:
            self.count += 1
            seen = super().run(plan)
            return replace(seen, records=()) if self.count % 2 else seen

    tuned, _ = drive(Accumulating())
    assert tuned.held_out_error == pytest.approx(0, abs=0.05)
    assert tuned.held_out_backward_error == pytest.approx(0, abs=0.05)
    assert tuned.plan.strategy == "libra"


@pytest.mark.parametrize(
    ("hops", "per_host", "times"), [(None, None, 5), (2, None, 1), (2, 4, 2), (2, 2, 1)]
)
def test_model_has_the_hops_of_the_engine(
    hops: int | None, per_host: int | None, times: int
) -> None:
    tuned, _ = drive(Machine(), hops=hops, workers_per_host=per_host)
    assert tuned.cost_model is not None
    # Fitted with four workers: the startup overhead there is what was measured.
    startup = tuned.cost_model.startup_seconds
    assert startup == pytest.approx(MODEL.startup_seconds, rel=0.1)
    more = tuned.cost_model.with_workers(16).startup_seconds
    assert more == pytest.approx(times * startup)


def test_plan_of_every_strategy_can_run_on_the_engine() -> None:
    tuned, _ = drive(Machine(), "asc-wfbp")
    assert {group.stream for group in tuned.plan.groups} == {0}
    found = simulate(PROFILE, tuned.plan, MODEL).backward_seconds
    assert tuned.plan.predicted_seconds == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize("gamma", [1.0, 1.3, 1.9])
def test_contention_of_concurrent_all_reduces_is_measured(gamma: float) -> None:
    tuned, experiments = drive(Machine(gamma=gamma), "asc-wfbp", runs_streams=True)
    assert tuned.plan.contention == pytest.approx(gamma, abs=0.05)
    assert any("a byte takes" in note for note in tuned.notes)
    assert any(experiment.plan.num_streams == 2 for experiment in experiments)
    true = replace(tuned.plan, contention=gamma)
    found = simulate(PROFILE, true, MODEL).backward_seconds
    assert tuned.plan.predicted_seconds == pytest.approx(found, rel=0.05)


class Floored(ContentionModel):
    """Computation continues next to any number of threads, where by the formula it would not."""

    def compute_rate(self, num_threads: ArrayLike) -> NDArray[np.float64]:
        alpha1, alpha2 = self.compute
        return np.maximum(0.02, alpha1 - alpha2 * np.asarray(num_threads, np.float64))


@pytest.mark.parametrize("max_steps", [60, 150])
def test_unpredictable_concurrent_threads_leave_gamma_unknown(
    max_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two streams of 3 threads, fitted to 3 and 4."""

    def libras_first(*args: Any) -> list[model_selection.ModelForm]:
        return sorted(
            model_selection.evaluate_forms(*args), key=lambda form: form.name != "contention"
        )

    monkeypatch.setattr(fit_and_plan, "evaluate_forms", libras_first)
    model = Floored(**dataclasses.asdict(MODEL) | {"compute": (1.0, 0.22)})
    machine = Machine(model=model)
    strategy = strategies.Auto(threads=(3, 4), streams=(1, 2))
    tuned, _ = drive(machine, strategy, Budget(max_steps, 1e6), runs_streams=True)
    assert isinstance(tuned.cost_model, ContentionModel)
    with pytest.raises(ValueError, match="r = 6"):
        tuned.cost_model.compute_rate(6)
    assert tuned.contention is None
    assert any("contention of concurrent all-reduces is unknown" in note for note in tuned.notes)
    if max_steps == 150:
        assert tuned.race is not None
        beyond = [candidate for candidate in tuned.race.candidates if candidate.plan.num_lanes > 4]
        assert beyond and not any(form.predicted_seconds for form in beyond)


def test_form_that_cannot_predict_leaves_the_other_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fit without one plan predicts that computation stops during that plan."""
    fits: list[int] = []

    def steep(samples: Any, **arguments: Any) -> Any:
        fitted = fit_model(samples, **arguments)
        fits.append(len(samples))
        if len(fits) != 2:  # to all steps, and without each traced plan but one
            return fitted
        return replace(fitted, model=replace(fitted.model, compute=(1.0, 1.0)))

    monkeypatch.setattr(fit_and_plan, "fit_model", steep)
    tuned, _ = drive(Machine(noise=0.02), strategies.Libra(race=False))
    assert len(fits) == 1 + trial_schedule.TRACED_SAMPLES
    assert isinstance(tuned.cost_model, ProcessorModel)
    [note] = [note for note in tuned.notes if "held-out plans" in note]
    assert "(CPU share)" in note and "(contention)" not in note
    assert tuned.held_out_error is not None and tuned.is_complete
    # Where no form can be judged either, the other plans test LIBRA's as it was fitted.
    fits.clear()
    monkeypatch.setattr(fit_and_plan, "evaluate_forms", lambda *_: [])
    tuned, _ = drive(Machine(noise=0.02), strategies.Libra(race=False))
    assert isinstance(tuned.cost_model, ContentionModel)
    assert tuned.held_out_error is not None and tuned.held_out_error < 0.25


def test_user_provided_gamma_is_kept() -> None:
    given = strategies.AscWfbp(contention=1.25)
    tuned, _ = drive(Machine(gamma=1.9), given, runs_streams=True)
    assert tuned.plan.contention == 1.25


def test_streams_are_measured_only_if_requested_and_supported() -> None:
    for strategy, runs_streams in (("asc-wfbp", False), ("mg-wfbp", True)):
        _, experiments = drive(Machine(), strategy, runs_streams=runs_streams)
        assert {experiment.plan.num_streams for experiment in experiments} == {1}


@pytest.mark.parametrize(
    "strategy", [strategies.Libra(race=False), strategies.LibraM(), "libra", "auto"]
)
@pytest.mark.parametrize("max_steps", [3, 5, 10])
def test_untested_model_does_not_choose_threads(
    strategy: strategies.Strategy | str, max_steps: int
) -> None:
    """Measurements after backward suffice for MG-WFBP, but say nothing of contention."""
    tuned, _ = drive(Machine(), strategy, Budget(max_steps, 1e6))
    name = strategies.resolve(strategy).name
    assert tuned.held_out_error is None and tuned.race is None and not tuned.is_complete
    assert tuned.plan.strategy == "mg-wfbp"
    assert tuned.plan.groups == make_plan(PROFILE, MODEL, "mg-wfbp").groups
    [note] = [note for note in tuned.plan.notes if f"MG-WFBP plans instead of {name}" in note]
    assert "was not tested" in note
    assert not any("the model decided" in note for note in tuned.notes)


@pytest.mark.parametrize("name", ["libra", "auto"])
def test_plan_of_an_untested_model_is_a_candidate(name: str) -> None:
    """The race decides between LIBRA's plan and the safe plan."""
    tuned, experiments = drive(Machine(), name, Budget(30, 1e6))
    assert Phase.SAMPLE not in {experiment.phase for experiment in experiments}
    assert tuned.held_out_error is None and not tuned.is_complete
    assert tuned.race is not None and tuned.race.num_rounds >= 2
    raced = [candidate.plan for candidate in tuned.race.candidates]
    assert {"libra", "mg-wfbp"} <= {plan.strategy for plan in raced}
    best = min(simulate(PROFILE, plan, MODEL).backward_seconds for plan in raced)
    assert simulate(PROFILE, tuned.plan, MODEL).backward_seconds <= 1.03 * best


@pytest.mark.parametrize("strategy", [strategies.Libra(race=False), strategies.LibraM()])
def test_model_error_above_its_limit_is_not_trusted(strategy: strategies.Strategy) -> None:
    tuned, _ = drive(Machine(noise=2.0), strategy, max_model_error=0.001)
    assert tuned.plan.strategy == "mg-wfbp"
    assert any(f"MG-WFBP plans instead of {strategy.name}" in note for note in tuned.notes)
    assert tuned.held_out_error is not None
    assert tuned.held_out_error > 0.001


def test_untrusted_model_proposes_a_candidate() -> None:
    tuned, _ = drive(Machine(noise=2.0), max_model_error=0.001)
    assert tuned.max_model_error == 0.001
    assert tuned.race is not None
    assert {"libra", "mg-wfbp"} <= {candidate.plan.strategy for candidate in tuned.race.candidates}
    assert any("MG-WFBP plans instead of libra" in note for note in tuned.notes)


@pytest.mark.parametrize("name", ["libra", "auto"])
@pytest.mark.parametrize("limit", [0.001, 1e3])
def test_untrusted_model_does_not_decide_without_a_race(name: str, limit: float) -> None:
    """The machine stalls in the last step before the race."""

    class Stopping(Machine):
        count = 0

        def run(self, plan: Plan) -> TrialResult:
            self.count += 1
            seen = super().run(plan)
            self.seconds += 100 * (self.count == (22 if name == "libra" else 25))
            return seen

    tuned, _ = drive(
        Stopping(noise=2.0), name, Budget(150, 100.0), max_model_error=limit, runs_streams=True
    )
    assert tuned.race is None and tuned.held_out_error is not None
    reported = any(f"MG-WFBP plans instead of {name}" in note for note in tuned.plan.notes)
    assert reported is (limit < 1)
    assert (tuned.plan.strategy == "mg-wfbp") is reported
    assert tuned.is_complete is not reported  # the next job is to measure again
    chosen = any("the model decided" in note for note in tuned.notes)
    assert chosen is (name == "auto" and not reported)


def test_better_form_is_selected_and_noted() -> None:
    shared = ProcessorModel(NUM_WORKERS, 2e-4, 1.2e-9, 2e-9)
    for model, kind in ((MODEL, ContentionModel), (shared, ProcessorModel)):
        tuned, _ = drive(Machine(model=model, noise=0.02))
        assert isinstance(tuned.cost_model, kind)
        assert tuned.rest_seconds == pytest.approx(BEFORE + AFTER, rel=0.3)
        # The error shown with the model is that of its predictions.
        assert tuned.median_error == median_error(tuned.cost_model, tuned.samples)
        assert np.median(np.abs(prediction_errors(tuned.cost_model, tuned.samples))) < 0.05
        [note] = [note for note in tuned.notes if "held-out plans" in note]
        assert note.index("CPU share") < note.index("contention") or kind is ContentionModel


def test_single_outlier_plan_keeps_the_model_trusted() -> None:
    """The only plan with many small all-reduces is predicted badly."""

    class Unlike(Machine):
        def run(self, plan: Plan) -> TrialResult:
            seen = super().run(plan)
            is_unlike = len(plan.groups) == len(SIZES) and not plan.after_backward
            return at_pace(seen, 1.7) if is_unlike else seen

    tuned, _ = drive(Unlike(noise=0.02), strategies.Libra(race=False))
    assert tuned.held_out_error is not None and tuned.held_out_error < 0.15
    assert tuned.plan.strategy == "libra"


def test_prediction_includes_waiting_for_a_core() -> None:
    """LIBRA's form is fitted from the start of all-reduces, which wait in a step."""
    waiting = 1.5e-3
    tuned, _ = drive(Machine(waiting=waiting, noise=0.02), strategies.Libra(race=False))
    assert isinstance(tuned.cost_model, ContentionModel) and tuned.profile is not None
    usual = slower(MODEL, waiting)
    errors = [
        simulate(tuned.profile, plan, tuned.cost_model).backward_seconds
        / simulate(PROFILE, plan, usual).backward_seconds
        - 1
        for plan in random_plans(PROFILE, (1, 2, 4), NUM_WORKERS, 12, seed=77)
    ]
    assert abs(np.median(errors)) < 0.02
    assert np.max(np.abs(errors)) < 0.05
    assert tuned.cost_model.startup_seconds == pytest.approx(usual.startup_seconds, rel=0.3)


@pytest.mark.parametrize("seed", [0, 3])
def test_temporary_slowdown_is_corrected(seed: int) -> None:
    machine = Machine(noise=0.02, whiles=2.5, seed=seed)
    tuned, _ = drive(machine, strategies.Libra(race=False))
    assert isinstance(tuned.cost_model, ContentionModel) and tuned.profile is not None
    ratios = [
        simulate(tuned.profile, plan, tuned.cost_model).backward_seconds
        / simulate(PROFILE, plan, MODEL).backward_seconds
        for plan in random_plans(PROFILE, (1, 2, 4), NUM_WORKERS, 12, seed=77)
    ]
    # At which pace is chance.
    assert np.ptp(ratios) < 0.03 * np.median(ratios)


def test_planner_without_a_plan_keeps_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("chunks are too few")

    monkeypatch.setattr(fit_and_plan, "make_plan", refuse)
    tuned, _ = drive(Machine(), strategies.Libra(race=False))
    assert tuned.cost_model is not None and tuned.median_error is not None
    assert [(g.start, g.stop) for g in tuned.plan.groups] == [(0, len(SIZES))]
    (note,) = [note for note in tuned.plan.notes if "chunks are too few" in note]
    assert note.startswith("libra found no plan")
    assert not any("no model could be fitted" in note for note in tuned.notes)


def test_model_predicts_plans_it_has_not_seen() -> None:
    tuned, _ = drive(Machine())
    assert tuned.cost_model is not None
    assert tuned.held_out_error is not None
    assert tuned.held_out_error < 0.05
    assert tuned.is_complete
