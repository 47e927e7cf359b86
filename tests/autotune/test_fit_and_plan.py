"""Models and plans from observed steps, with fallbacks."""

from dataclasses import replace

import numpy as np
import pytest

from tests.autotune.machine import (
    AFTER,
    BEFORE,
    MODEL,
    NUM_WORKERS,
    PROFILE,
    SHARED,
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
    random_plans,
)
from tf_libra.cost_model import (
    ContentionModel,
    ProcessorModel,
    median_error,
    prediction_errors,
)
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

    tuned, _ = drive(Accumulating(model=SHARED))
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


def test_contention_that_cannot_be_fitted_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("no computation next to 6 threads")

    monkeypatch.setattr(fit_and_plan, "measured_contention", refuse)
    tuned, _ = drive(Machine(), strategies.AscWfbp(), runs_streams=True)
    assert tuned.contention is None
    [note] = [note for note in tuned.notes if "contention of concurrent" in note]
    assert "next to 6 threads" in note


def test_user_provided_gamma_stays() -> None:
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
        Stopping(model=SHARED, noise=2.0),
        name,
        Budget(150, 100.0),
        max_model_error=limit,
        runs_streams=True,
    )
    assert tuned.race is None and tuned.held_out_error is not None
    reported = any(f"MG-WFBP plans instead of {name}" in note for note in tuned.plan.notes)
    assert reported is (limit < 1)
    assert (tuned.plan.strategy == "mg-wfbp") is reported
    assert tuned.is_complete is not reported  # the next job is to measure again
    chosen = any("the model decided" in note for note in tuned.notes)
    assert chosen is (name == "auto" and not reported)


def test_form_follows_from_what_the_engine_measures() -> None:
    for model, kind in ((MODEL, ContentionModel), (SHARED, ProcessorModel)):
        tuned, _ = drive(Machine(model=model, noise=0.02))
        assert isinstance(tuned.cost_model, kind)
        if kind is ProcessorModel:
            assert tuned.rest_seconds == pytest.approx(BEFORE + AFTER, rel=0.3)
        # The error shown with the model is that of its predictions.
        assert tuned.median_error == median_error(tuned.cost_model, tuned.samples)
        assert np.median(np.abs(prediction_errors(tuned.cost_model, tuned.samples))) < 0.05


def test_steps_that_determine_no_shares_leave_the_contention_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def undetermined(*_: object) -> None:
        raise ValueError("no finite residuals")

    monkeypatch.setattr(fit_and_plan, "calibrate", undetermined)
    tuned, _ = drive(Machine(model=SHARED))
    assert isinstance(tuned.cost_model, ContentionModel)
    assert any("no finite residuals" in note for note in tuned.notes)


def test_core_time_is_measured_and_shared_by_a_workers_cores() -> None:
    """Noise of durations does not change it."""
    for cores in (1, 4):
        tuned, _ = drive(Machine(model=SHARED, noise=0.5), cores=cores)
        model = tuned.cost_model
        assert isinstance(model, ProcessorModel)
        assert model.work_per_byte == pytest.approx(SHARED.work_per_byte / cores, rel=1e-3)
        assert model.lane_weight == 1 / cores


def test_all_reduces_of_one_host_take_core_time_alone() -> None:
    """A wire's seconds per byte cannot be separated from those of the cores there."""
    shared = ProcessorModel(NUM_WORKERS, 2e-4, 1.2e-9)
    tuned, _ = drive(Machine(model=shared, noise=0.02), on_one_host=True)
    assert isinstance(tuned.cost_model, ProcessorModel)
    assert tuned.cost_model.wire_per_byte == 0
    assert tuned.cost_model.work_per_byte == pytest.approx(1.2e-9, rel=0.05)
    tuned, _ = drive(Machine(model=shared), on_one_host=True, cores=2)
    assert tuned.cost_model.wire_per_byte > 0


def test_two_fits_in_a_row_differ_little() -> None:
    """All-reduces take up to 1.1 times as long by chance."""
    machines = [Machine(model=SHARED, noise=0.1, seed=seed) for seed in range(4)]
    models = [drive(machine, strategies.Libra(race=False))[0].cost_model for machine in machines]
    for rate in ("overlapped_rate", "exclusive_rate", "compute_rate"):
        found = np.array([getattr(model, rate)((1, 2, 4)) for model in models])
        assert np.all(found.max(axis=0) <= 1.1 * found.min(axis=0))


def test_model_with_a_single_outlier_plan_stays_trusted() -> None:
    """The only plan with many small all-reduces is predicted badly."""

    class Unlike(Machine):
        def run(self, plan: Plan) -> TrialResult:
            seen = super().run(plan)
            is_unlike = len(plan.groups) == len(SIZES) and not plan.after_backward
            return at_pace(seen, 1.7) if is_unlike else seen

    tuned, _ = drive(Unlike(model=SHARED, noise=0.02), strategies.Libra(race=False))
    assert tuned.held_out_error is not None and tuned.held_out_error < 0.15
    assert tuned.plan.strategy == "libra"


def test_prediction_includes_waiting_for_a_core() -> None:
    waiting = 1.5e-3
    tuned, _ = drive(
        Machine(model=SHARED, waiting=waiting, noise=0.02), strategies.Libra(race=False)
    )
    assert isinstance(tuned.cost_model, ProcessorModel) and tuned.profile is not None
    usual = slower(SHARED, waiting)
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
    machine = Machine(model=SHARED, noise=0.02, whiles=2.5, seed=seed)
    tuned, _ = drive(machine, strategies.Libra(race=False))
    assert isinstance(tuned.cost_model, ProcessorModel) and tuned.profile is not None
    ratios = [
        simulate(tuned.profile, plan, tuned.cost_model).backward_seconds
        / simulate(PROFILE, plan, SHARED).backward_seconds
        for plan in random_plans(PROFILE, (1, 2, 4), NUM_WORKERS, 12, seed=77)
    ]
    # At which pace is chance.
    assert np.ptp(ratios) < 0.03 * np.median(ratios)


def test_model_stays_if_the_planner_finds_no_plan(
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
