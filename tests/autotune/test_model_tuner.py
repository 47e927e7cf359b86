"""Model tuner on a simulated machine."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.autotune.machine import (
    BEFORE,
    MODEL,
    NUM_WORKERS,
    PROFILE,
    SHARED,
    SIZES,
    Machine,
    drive,
)
from tf_libra import strategies
from tf_libra.autotune import Budget, Phase, TensorSpec, TrialResult
from tf_libra.cost_model import CostModel
from tf_libra.planning import make_plan
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile, rows_of
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord

# As tracing might have guessed it: not quite the order of production.
TRACED_ORDER = [1, 0, 2, 3, 5, 4, 6, 7, 9, 8]


@pytest.mark.parametrize("model", [MODEL, SHARED])
def test_finds_a_plan_as_good_as_one_made_with_full_knowledge(model: CostModel) -> None:
    tuned, _ = drive(Machine(model=model))
    best = make_plan(PROFILE, model, "libra")
    found = simulate(PROFILE, tuned.plan, model).backward_seconds
    assert tuned.plan.strategy == "libra"
    assert found <= 1.02 * simulate(PROFILE, best, model).backward_seconds
    assert tuned.plan.predicted_seconds == pytest.approx(found, rel=0.05)


def test_profile_is_what_the_machine_does_without_contention() -> None:
    tuned, _ = drive(Machine(model=SHARED))
    assert tuned.profile is not None
    measured = tuned.profile
    assert measured.names == PROFILE.names
    # How fast the machine computes is fitted to whole steps.
    np.testing.assert_allclose(measured.compute_seconds, PROFILE.compute_seconds, rtol=1e-2)
    assert [t.dtype for t in measured.tensors] == ["float32"] * len(SIZES)


# A table whose rows few words of a batch select comes last, as the first layer.
EMBEDDING = BackwardProfile.from_arrays(
    [*SIZES, 24_000_000],
    [*PROFILE.compute_seconds, 2e-3],
    [*PROFILE.names, "table"],
    density=[*[1.0] * len(SIZES), 0.12],
)


def test_sparse_gradient_is_predicted_by_the_bytes_that_count() -> None:
    """A table sends 2 % of its bytes, and looking at the others takes a tenth of their time."""
    machine = Machine(EMBEDDING, model=SHARED, omitted_cost=0.1 / 0.98)
    tuned, trials = drive(machine)
    assert tuned.profile is not None and tuned.cost_model is not None
    found = {tensor.name: tensor.density for tensor in tuned.profile.tensors}
    assert found.pop("table") == pytest.approx(0.12, rel=0.05)
    assert list(found.values()) == [1.0] * len(SIZES)
    assert tuned.held_out_error is not None and tuned.held_out_error < 0.01
    for trial in trials[-20:]:
        seen = machine.run(trial.plan)
        assert tuned.predicted_step(trial.plan) == pytest.approx(seen.seconds, rel=0.02)
    # As if nothing were known of zeros, predictions are off.
    dense = replace(tuned, profile=tuned.profile.with_density({"table": 1.0}))
    predicted = dense.predicted_step(tuned.plan)
    assert predicted is not None
    assert predicted > 1.2 * machine.run(tuned.plan).seconds
    best = make_plan(EMBEDDING, SHARED, "libra")
    plans = tuned.plan, best
    seconds = [simulate(EMBEDDING, plan, SHARED).backward_seconds for plan in plans]
    assert seconds[0] <= 1.02 * seconds[1]


def test_plan_is_in_the_order_of_production_not_of_tracing() -> None:
    machine = Machine()
    tuning_order = [machine.profile.tensors[i].name for i in TRACED_ORDER]
    assert tuning_order != list(PROFILE.names)

    class InOrder(Machine):
        """Produces in its own order, whatever order the plan lists tensors in."""

        def run(self, plan: Plan) -> TrialResult:
            listed = plan.tensor_names
            seen = super().run(replace(plan, tensor_names=PROFILE.names, num_bytes=tuple(SIZES)))
            assert seen.production is not None
            produced = dict(zip(seen.production.names, seen.production.produced_ns, strict=True))
            production = replace(
                seen.production,
                names=listed,
                produced_ns=np.array([produced[name] for name in listed]),
            )
            return replace(seen, production=production)

    tuned, _ = drive(InOrder(model=SHARED), order=TRACED_ORDER)
    assert tuned.plan.tensor_names == PROFILE.names
    assert tuned.cost_model is not None
    assert tuned.rest_seconds is not None
    assert tuned.race is not None


@pytest.mark.usefixtures("anew")
def test_same_observations_give_the_same_plan() -> None:
    first, second = (drive(Machine(noise=0.3))[0] for _ in range(2))
    assert first.plan == second.plan
    assert first.cost_model == second.cost_model


def test_measures_after_backward_then_samples_overlapped_then_races() -> None:
    _, experiments = drive(Machine())
    phases = [
        phase for phase, _ in itertools.groupby(experiment.phase for experiment in experiments)
    ]
    assert phases == [Phase.MEASURE, Phase.SAMPLE, Phase.RACE]
    seen: set[str] = set()
    for experiment in experiments:
        assert experiment.plan.after_backward == (experiment.phase is Phase.MEASURE)
        # The first step of a plan pays for its instantiation, and is not looked at.
        known = experiment.plan.fingerprint in seen
        assert known or (experiment.is_first and not experiment.traced)
        seen.add(experiment.plan.fingerprint)


def test_sampled_plans_take_turns_untraced() -> None:
    experiments = [
        experiment
        for experiment in drive(Machine(model=SHARED))[1]
        if experiment.phase is Phase.SAMPLE
    ]
    turns = [
        experiment.plan.fingerprint
        for experiment in experiments
        if not (experiment.traced or experiment.is_first)
    ]
    plans = set(turns)
    for start in range(0, len(turns), len(plans)):
        assert set(turns[start : start + len(plans)]) == plans
    assert len(plans) >= 5


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_race_winner_is_the_plan_with_its_measurements(noise: float) -> None:
    tuned, experiments = drive(Machine(model=SHARED, noise=noise))
    assert tuned.race is not None
    assert tuned.plan.fingerprint == tuned.race.winner.plan.fingerprint
    raced = {
        experiment.plan.fingerprint for experiment in experiments if experiment.phase is Phase.RACE
    }
    assert {candidate.plan.fingerprint for candidate in tuned.race.candidates} == raced
    assert any(len(candidate.plan.groups) == 1 for candidate in tuned.race.candidates)
    assert tuned.race.median_error is not None
    assert tuned.race.median_error < 0.05
    best = min(
        simulate(PROFILE, candidate.plan, SHARED).backward_seconds
        for candidate in tuned.race.candidates
    )
    found = simulate(PROFILE, tuned.plan, SHARED).backward_seconds
    assert found <= 1.03 * best


@pytest.mark.parametrize("forward_seconds", [0.0, BEFORE])
@pytest.mark.parametrize("strategy", ["libra", "auto"])
def test_plan_with_gathers_is_active_only_if_it_is_faster(
    strategy: str, forward_seconds: float
) -> None:
    """Each measured step follows another one under the plan, whose gathers it waits for."""
    machine = Machine(forward_seconds=forward_seconds, model=SHARED.with_link_rate(0.5), noise=0.02)
    tuned, experiments = drive(machine, strategy, Budget(max_steps=100), tries_gathers=True)
    assert tuned.race is not None
    tried = [candidate.plan for candidate in tuned.race.candidates if candidate.plan.gathers]
    assert len(tried) == 1
    assert bool(tuned.plan.gathers) == bool(forward_seconds)
    for before, experiment in itertools.pairwise(experiments):
        assert not (experiment.is_consecutive and before.plan != experiment.plan)
        assert experiment.phase is Phase.RACE or not experiment.plan.gathers
    pairs = [experiment.plan for experiment in experiments if experiment.is_consecutive]
    assert {plan.fingerprint for plan in pairs} == {tried[0].fingerprint}


def test_gathers_are_no_default_under_an_untrusted_model() -> None:
    machine = Machine(model=SHARED.with_link_rate(0.5), noise=0.02)
    budget = Budget(max_steps=100)
    tuned, _ = drive(machine, "libra", budget, tries_gathers=True, max_model_error=1e-9)
    assert tuned.race is not None
    tried = [candidate.plan for candidate in tuned.race.candidates]
    own = [plan for plan in tried if plan.strategy == "libra"]
    assert sorted(bool(plan.gathers) for plan in own) == [False, True]
    assert not tuned.plan.gathers


@pytest.mark.parametrize("tries_gathers", [False, True])
def test_strategy_of_gathers_all_reduces_if_no_update_can_be_sharded(tries_gathers: bool) -> None:
    tuned, _ = drive(
        Machine(), strategies.Dear(buffer_bytes=5_000_000), tries_gathers=tries_gathers
    )
    assert (tuned.plan.strategy, len(tuned.plan.groups)) == ("dear", 4)
    assert bool(tuned.plan.gathers) == tries_gathers
    assert any("no update can be sharded" in note for note in tuned.plan.notes) != tries_gathers
    predicted = tuned.predicted(tuned.plan)
    assert predicted is not None and predicted.backward_seconds == tuned.plan.predicted_seconds


@pytest.mark.parametrize("num_whole", [0, 2])
def test_steps_that_overlap_under_any_plan_are_measured_in_pairs(num_whole: int) -> None:
    """Predictions know of updates that every rank makes."""
    machine = Machine(forward_seconds=BEFORE, model=SHARED.with_link_rate(0.5))
    whole = PROFILE.names[:num_whole]
    options = {"tries_gathers": True, "overlaps_calls": True, "whole_updates": whole}
    tuned, experiments = drive(machine, budget=Budget(max_steps=100), **options)
    raced = [
        experiment
        for experiment in experiments
        if experiment.phase is Phase.RACE and not experiment.is_first
    ]
    assert [experiment.is_consecutive for experiment in raced] == [False, True] * (len(raced) // 2)
    assert tuned.plan.gathers
    assert tuned.race is not None
    for candidate in tuned.race.candidates:  # as they run, with gathers
        plan = candidate.plan
        if not plan.gathers:
            plan = replace(plan, gathers=plan.groups[::-1])
        assert candidate.predicted_seconds == tuned.predicted_step(plan)
    longer = replace(tuned, whole_updates=PROFILE.names).predicted_step(tuned.plan)
    usual = replace(tuned, whole_updates=()).predicted_step(tuned.plan)
    assert tuned.whole_updates == whole and longer != usual


def test_strategy_without_a_race_gets_none() -> None:
    tuned, experiments = drive(Machine(), strategies.Libra(race=False))
    assert tuned.race is None
    assert Phase.RACE not in {experiment.phase for experiment in experiments}


def test_every_thread_count_is_seen_at_three_sizes_alone_and_once_overlapped() -> None:
    tuned, experiments = drive(Machine())
    for r in (1, 2, 4):
        alone = {
            size
            for experiment in experiments
            if experiment.plan.after_backward and experiment.traced
            for size, group in zip(experiment.plan.group_bytes, experiment.plan.groups, strict=True)
            if group.num_threads == r
        }
        assert len(alone) >= 3
        assert [s for s in tuned.samples if s.num_threads == r and s.overlap_seconds]


@pytest.mark.parametrize("name", strategies.BY_NAME)
def test_every_strategy_gets_a_plan_with_threads_it_may_use(name: str) -> None:
    strategy = strategies.resolve(name)
    tuned, experiments = drive(Machine(), strategy)
    assert tuned.plan.strategy == name or name == "auto"  # which takes the best of them
    assert tuned.plan.num_workers == NUM_WORKERS
    allowed = set(strategy.allowed_threads)
    for plan in (tuned.plan, *(experiment.plan for experiment in experiments)):
        assert {group.num_threads for group in plan.groups} <= allowed


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


def test_one_tensor_is_one_group() -> None:
    machine = Machine(BackwardProfile.from_arrays([1_000_000], [0.01], ["only"]))
    tuned, _ = drive(machine)
    assert [(g.start, g.stop) for g in tuned.plan.groups] == [(0, 1)]


def test_empty_tensors_are_planned() -> None:
    machine = Machine(BackwardProfile.from_arrays([0, 1_000_000, 0, 400_000], [0.01] * 4))
    tuned, _ = drive(machine)
    assert len(tuned.plan.tensor_names) == 4


def test_model_of_empty_tensors_is_planned() -> None:
    machine = Machine(BackwardProfile.from_arrays([0, 0], [0.01, 0.01]))
    tuned, _ = drive(machine)
    assert len(tuned.plan.tensor_names) == 2


class RowsMachine(Machine):
    """Gathers the rows of t4, whose size tracing does not know, in an all-reduce of their own."""

    def specs(self, order: Sequence[int] | None = None) -> list[TensorSpec]:
        return [
            TensorSpec("t4", 0, rows_of("float32")) if spec.name == "t4" else spec
            for spec in super().specs(order)
        ]

    def run(self, plan: Plan) -> TrialResult:
        sizes = dict(zip(PROFILE.names, SIZES, strict=True))
        seen = super().run(
            replace(plan, num_bytes=tuple(sizes[name] for name in plan.tensor_names))
        )
        records = [part for record in seen.records for part in self._parts(record, sizes["t4"])]
        return replace(
            seen, records=tuple(replace(each, sequence=i) for i, each in enumerate(records))
        )

    def _parts(self, record: AllReduceRecord, num_bytes: int) -> list[AllReduceRecord]:
        others = tuple(name for name in record.tensor_names if name != "t4")
        if not others or len(others) == len(record.tensor_names):
            return [record]
        share = (record.num_bytes - num_bytes) / record.num_bytes
        end = record.started_ns + round(share * (record.finished_ns - record.started_ns))
        dense = replace(
            record,
            num_bytes=record.num_bytes - num_bytes,
            tensor_names=others,
            finished_ns=end,
        )
        rows = replace(
            record,
            num_bytes=num_bytes,
            tensor_names=("t4",),
            started_ns=end,
            first_byte_ns=end + 10_000,
        )
        return [dense, rows]


def test_rows_are_planned_by_their_measured_size() -> None:
    tuned, trials = drive(RowsMachine())
    sizes = dict(zip(tuned.plan.tensor_names, tuned.plan.num_bytes, strict=True))
    assert sizes["t4"] == SIZES[4]
    assert tuned.profile is not None
    assert tuned.profile.tensors[4].dtype == rows_of("float32")
    plan = replace(tuned.plan, dtypes=None)
    best = simulate(PROFILE, make_plan(PROFILE, MODEL, "libra"), MODEL).backward_seconds
    assert simulate(PROFILE, plan, MODEL).backward_seconds <= 1.05 * best
    unknown = [trial for trial in trials if 0 in trial.plan.num_bytes]
    assert {trial.phase for trial in unknown} == {Phase.MEASURE}
    # A retuning compares plans by one profile.
    again, _ = drive(RowsMachine(), active_plan=tuned.plan)
    assert again.plan.num_bytes == tuned.plan.num_bytes
