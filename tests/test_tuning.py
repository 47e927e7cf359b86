"""Tuning against a simulated machine that obeys a contention model to the nanosecond."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tf_libra import strategies, tuning
from tf_libra.cost_model import ContentionModel
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.model.telemetry import AllReduceRecord
from tf_libra.planning import make_plan
from tf_libra.profiling.backward import StepProduction
from tf_libra.simulation import simulate
from tf_libra.tuning import (
    BASELINE_STEPS,
    Budget,
    Experiment,
    Observation,
    Phase,
    TensorSpec,
    Tuned,
    tune,
)

NUM_WORKERS = 4
MODEL = ContentionModel(
    num_workers=NUM_WORKERS,
    hop_latency=5e-5,
    compute=(1.05, 0.06),
    overlapped=(1.5e9, 2.0e9, 0.7),
    exclusive=(1.9e9, 2.2e9, 0.7),
    exponent=0.6,
)
SIZES = [40_000, 4_000, 8_000_000, 8_000, 4_000_000, 2_000, 2_400_000, 1_000, 1_200_000, 600_000]
PROFILE = BackwardProfile.from_arrays(
    SIZES, np.linspace(1e-3, 6e-3, len(SIZES)), [f"t{i}" for i in range(len(SIZES))]
)
# As tracing might have guessed it: not quite the order of production.
TRACED_ORDER = [1, 0, 2, 3, 5, 4, 6, 7, 9, 8]


class Machine:
    """Runs plans as `simulate` says, with noise on every time."""

    def __init__(
        self, profile: BackwardProfile = PROFILE, noise: float = 0.0, model: ContentionModel = MODEL
    ) -> None:
        self.profile = profile
        self.model = model
        self.seconds = 0.0
        self._noise = noise
        self._random = np.random.default_rng(0)
        self._step = 0

    def specs(self, order: Sequence[int] | None = None) -> list[TensorSpec]:
        tensors = self.profile.tensors
        order = range(len(tensors)) if order is None else order
        return [TensorSpec(tensors[i].name, tensors[i].num_bytes, "float32") for i in order]

    def run(self, plan: Plan) -> Observation:
        self._step += 1
        self.seconds += 0.05
        # In the order of production, whatever the plan's.
        timeline = simulate(self._reordered(plan), plan, self.model)
        times, work = [0.0], [0.0]
        for index, stage in enumerate(timeline.stages):
            rate = 1.0
            if index > 0:
                rate = float(self.model.compute_rate(plan.groups[index - 1].num_threads))
            for seconds, speed in (
                (stage.overlap_seconds, rate),
                (stage.residual_compute_seconds, 1.0),
                (stage.residual_communication_seconds, 0.0),
            ):
                times.append(times[-1] + seconds)
                work.append(work[-1] + seconds * speed)
        compute = self._reordered(plan).compute_seconds
        moving = np.concatenate([[True], np.diff(work) > 0])
        produced = np.interp(np.cumsum(compute), np.array(work)[moving], np.array(times)[moving])
        start_ns = 10**18 + self._step * 10**10
        noisy = 1 + self._noise * self._random.random(len(plan.groups))
        records = tuple(
            AllReduceRecord(
                step=self._step,
                sequence=index,
                plan=plan.fingerprint[:16],
                group=index,
                num_threads=group.num_threads,
                num_bytes=sum(plan.num_bytes[group.start : group.stop]),
                enqueued_ns=start_ns + round(span.ready_seconds * 1e9),
                started_ns=start_ns + round(span.start_seconds * 1e9),
                first_byte_ns=start_ns + round(span.start_seconds * 1e9) + 10_000,
                finished_ns=start_ns
                + round(
                    (span.start_seconds + (span.end_seconds - span.start_seconds) * noisy[index])
                    * 1e9
                ),
                tensor_names=plan.tensor_names[group.start : group.stop],
            )
            for index, (group, span) in enumerate(zip(plan.groups, timeline.groups, strict=True))
        )
        production = StepProduction(
            names=plan.tensor_names,
            produced_ns=start_ns + np.round(produced * 1e9).astype(np.int64),
            inferred={},
            backward_start_ns=start_ns,
        )
        return Observation(production, records)

    def _reordered(self, plan: Plan) -> BackwardProfile:
        """The profile in the plan's order; each tensor keeps the time of its own."""
        by_name = {tensor.name: tensor for tensor in self.profile.tensors}
        tensors = [by_name[name] for name in plan.tensor_names]
        return BackwardProfile.from_arrays(
            [t.num_bytes for t in tensors],
            [t.compute_seconds for t in tensors],
            [t.name for t in tensors],
        )


def drive(
    machine: Machine,
    strategy: strategies.Strategy | str = "libra",
    budget: Budget | None = None,
    order: Sequence[int] | None = None,
    traceable: bool = True,
    **options: Any,
) -> tuple[Tuned, list[Experiment]]:
    """Tunes to the end, as a session does."""
    tuning = tune(
        machine.specs(order),
        strategies.resolve(strategy),
        NUM_WORKERS,
        budget or Budget(),
        clock=lambda: machine.seconds,
        **options,
    )
    experiments: list[Experiment] = []
    observation = None
    while True:
        try:
            experiment = tuning.send(observation)
        except StopIteration as finished:
            return finished.value, experiments
        experiments.append(experiment)
        seen = machine.run(experiment.plan)
        observation = seen if experiment.traced else None
        if observation is not None and not traceable:
            observation = Observation(None, seen.records, "busy: somebody else is profiling")


def test_finds_a_plan_as_good_as_one_made_with_full_knowledge() -> None:
    tuned, _ = drive(Machine())
    best = make_plan(PROFILE, MODEL, "libra")
    found = simulate(PROFILE, tuned.plan, MODEL).backward_seconds
    assert tuned.plan.strategy == "libra"
    assert found <= 1.02 * simulate(PROFILE, best, MODEL).backward_seconds
    assert tuned.plan.predicted_seconds == pytest.approx(found, rel=0.05)


def test_profile_is_what_the_machine_does_without_contention() -> None:
    tuned, _ = drive(Machine())
    assert tuned.profile is not None
    measured = tuned.profile.profile
    assert measured.names == PROFILE.names
    np.testing.assert_allclose(measured.compute_seconds, PROFILE.compute_seconds, rtol=1e-3)
    assert [t.dtype for t in measured.tensors] == ["float32"] * len(SIZES)


def test_model_predicts_plans_it_has_not_seen() -> None:
    tuned, _ = drive(Machine())
    assert tuned.cost_model is not None
    assert tuned.held_out_error is not None
    assert tuned.held_out_error < 0.05
    assert tuned.is_complete


def test_plan_is_in_the_order_of_production_not_of_tracing() -> None:
    machine = Machine()
    tuning_order = [machine.profile.tensors[i].name for i in TRACED_ORDER]
    assert tuning_order != list(PROFILE.names)

    class InOrder(Machine):
        """Produces in its own order, whatever order the plan lists tensors in."""

        def run(self, plan: Plan) -> Observation:
            listed = plan.tensor_names
            seen = super().run(replace(plan, tensor_names=PROFILE.names, num_bytes=tuple(SIZES)))
            assert seen.production is not None
            produced = dict(zip(seen.production.names, seen.production.produced_ns, strict=True))
            production = replace(
                seen.production,
                names=listed,
                produced_ns=np.array([produced[name] for name in listed]),
            )
            return Observation(production, seen.records)

    tuned, _ = drive(InOrder(), order=TRACED_ORDER)
    assert tuned.plan.tensor_names == PROFILE.names


def test_steps_that_only_accumulate_gradients_do_not_count_against_the_model() -> None:
    class Accumulating(Machine):
        """All-reduces in every third step."""

        count = 0

        def run(self, plan: Plan) -> Observation:
            self.count += 1
            seen = super().run(plan)
            return Observation(seen.production, ()) if self.count % 3 else seen

    tuned, _ = drive(Accumulating())
    assert tuned.held_out_error == pytest.approx(0, abs=0.05)
    assert tuned.plan.strategy == "libra"


def test_same_observations_give_the_same_plan() -> None:
    first, second = (drive(Machine(noise=0.3))[0] for _ in range(2))
    assert first.plan == second.plan
    assert first.cost_model == second.cost_model


def test_starts_with_one_all_reduce_after_backward_that_nobody_looks_at() -> None:
    _, experiments = drive(Machine())
    for experiment in experiments[: 1 + BASELINE_STEPS]:
        assert experiment.phase is Phase.MEASURE
        assert len(experiment.plan.groups) == 1
        assert not experiment.traced
    assert experiments[1 + BASELINE_STEPS].plan.after_backward


def test_measures_after_backward_and_then_samples_overlapped() -> None:
    experiments = drive(Machine())[1][1 + BASELINE_STEPS :]
    phases = [experiment.phase for experiment in experiments]
    assert [phase for phase, _ in itertools.groupby(phases)] == [Phase.MEASURE, Phase.SAMPLE]
    for experiment in experiments:
        assert experiment.plan.after_backward == (experiment.phase is Phase.MEASURE)
    # The first step of a plan pays for its instantiation, and is not looked at.
    for _, group in itertools.groupby(experiments, key=lambda e: e.plan.fingerprint):
        traced = [experiment.traced for experiment in group]
        assert traced == [False] + [True] * (len(traced) - 1)


def test_every_thread_count_is_seen_at_three_sizes_alone_and_once_overlapped() -> None:
    tuned, _ = drive(Machine())
    for r in (1, 2, 4):
        alone = {s.num_bytes for s in tuned.samples if s.num_threads == r and not s.overlap_seconds}
        overlapped = [s for s in tuned.samples if s.num_threads == r and s.overlap_seconds]
        assert len(alone) >= 3
        assert overlapped


@pytest.mark.parametrize("name", strategies.BY_NAME)
def test_every_strategy_gets_a_plan_with_threads_it_may_use(name: str) -> None:
    strategy = strategies.resolve(name)
    tuned, experiments = drive(Machine(), strategy)
    assert tuned.plan.strategy == name
    assert tuned.plan.num_workers == NUM_WORKERS
    allowed = set(strategy.allowed_threads)
    for plan in (tuned.plan, *(experiment.plan for experiment in experiments)):
        assert {group.num_threads for group in plan.groups} <= allowed


def test_plan_of_any_strategy_is_one_that_the_engine_can_run() -> None:
    tuned, _ = drive(Machine(), "asc-wfbp")
    assert {group.stream for group in tuned.plan.groups} == {0}
    found = simulate(PROFILE, tuned.plan, MODEL).backward_seconds
    assert tuned.plan.predicted_seconds == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize("max_steps", [1, 2, 3, 4, 5, 8, 11, 12, 13, 16, 17, 30, 59])
def test_budget_of_steps_is_kept_and_a_plan_made_all_the_same(max_steps: int) -> None:
    tuned, experiments = drive(Machine(noise=0.1), budget=Budget(max_steps, 1e9))
    assert len(experiments) == max_steps
    assert tuned.plan.tensor_names == PROFILE.names
    assert any(f"the budget of {max_steps} steps" in note for note in tuned.notes)
    assert not tuned.is_complete
    assert tuned.plan.notes[-len(tuned.notes) :] == tuned.notes


def test_budget_that_is_not_spent_is_not_mentioned() -> None:
    tuned, experiments = drive(Machine(), budget=Budget(1000, 1e9))
    assert len(experiments) <= 100
    assert not any("budget" in note for note in tuned.notes)


def test_default_budget_suffices() -> None:
    assert not any("budget" in note for note in drive(Machine())[0].notes)


@pytest.mark.parametrize("max_seconds", [0.01, 0.26, 1.0, 2.0])
def test_budget_of_seconds_is_kept(max_seconds: float) -> None:
    tuned, experiments = drive(Machine(), budget=Budget(1000, max_seconds))
    # A step takes 0.05 s; one that was begun in time is finished.
    assert len(experiments) == int(np.ceil(max_seconds / 0.05))
    assert tuned.plan.tensor_names == PROFILE.names
    assert any(f"{max_seconds:g} s" in note for note in tuned.notes)


def test_without_a_trace_all_is_reduced_after_backward() -> None:
    tuned, experiments = drive(Machine(), traceable=False)
    assert [(g.start, g.stop) for g in tuned.plan.groups] == [(0, len(SIZES))]
    assert tuned.plan.strategy == "syneasgd"
    assert tuned.profile is None
    assert tuned.cost_model is None
    assert not tuned.is_complete
    times = sum(experiment.traced for experiment in experiments)
    assert f"busy: somebody else is profiling ({times} times)" in tuned.notes
    assert any("no profile could be measured" in note for note in tuned.plan.notes)
    # Nothing can be sampled without a profile, so nothing is.
    assert {experiment.phase for experiment in experiments} == {Phase.MEASURE}


@pytest.mark.parametrize("name", ["libra", "libra-m"])
def test_model_that_misses_its_limit_is_not_trusted(name: str) -> None:
    tuned, _ = drive(Machine(noise=2.0), name, max_model_error=0.001)
    assert tuned.plan.strategy == "mg-wfbp"
    assert any(f"MG-WFBP plans instead of {name}" in note for note in tuned.notes)
    assert tuned.held_out_error is not None
    assert tuned.held_out_error > 0.001


def test_one_tensor_is_one_group() -> None:
    machine = Machine(BackwardProfile.from_arrays([1_000_000], [0.01], ["only"]))
    tuned, _ = drive(machine)
    assert [(g.start, g.stop) for g in tuned.plan.groups] == [(0, 1)]


def test_tensors_of_no_bytes_are_no_trouble() -> None:
    machine = Machine(BackwardProfile.from_arrays([0, 1_000_000, 0, 400_000], [0.01] * 4))
    tuned, _ = drive(machine)
    assert len(tuned.plan.tensor_names) == 4


def test_nothing_to_send_at_all_is_no_trouble() -> None:
    machine = Machine(BackwardProfile.from_arrays([0, 0], [0.01, 0.01]))
    tuned, _ = drive(machine)
    assert len(tuned.plan.tensor_names) == 2


def test_planner_that_finds_no_plan_is_not_the_models_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("chunks are too few")

    monkeypatch.setattr(tuning, "make_plan", refuse)
    tuned, _ = drive(Machine())
    assert tuned.cost_model is not None and tuned.fit is not None
    assert [(g.start, g.stop) for g in tuned.plan.groups] == [(0, len(SIZES))]
    (note,) = [note for note in tuned.plan.notes if "chunks are too few" in note]
    assert note.startswith("libra has found no plan")
    assert not any("no model could be fitted" in note for note in tuned.notes)
