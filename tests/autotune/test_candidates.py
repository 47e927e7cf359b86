"""Candidate selection from known profiles and models."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.autotune.machine import MODEL, NUM_WORKERS, PROFILE, SIZES
from tf_libra import strategies
from tf_libra.autotune import TuningResult
from tf_libra.autotune.candidates import (
    MAX_CANDIDATES,
    distance,
    select_candidates,
    warm_start_plan,
)
from tf_libra.autotune.sampling_plans import tensor_specs, two_stream_plan
from tf_libra.autotune.warm_start import JobSignature, PlanOutline, WarmStart
from tf_libra.cost_model import ProcessorModel
from tf_libra.planning import make_plan
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan, TensorGroup

CONCLUSION = TuningResult(
    make_plan(PROFILE, MODEL, "libra"), PROFILE, MODEL, held_out_error=0.0, rest_seconds=0.01
)


def plan(ends: list[int], threads: list[int], sizes: tuple[int, ...] = (8, 8, 8, 8)) -> Plan:
    groups = tuple(
        TensorGroup(start, stop, r)
        for (start, stop), r in zip(itertools.pairwise([0, *ends]), threads, strict=True)
    )
    return Plan(groups, tuple(f"t{i}" for i in range(len(sizes))), sizes, 2, "some")


def test_result_plan_is_first_and_one_all_reduce_is_a_candidate() -> None:
    proposed = [
        candidate
        for candidate, _ in select_candidates(CONCLUSION, strategies.Libra(), runs_streams=False)
    ]
    assert proposed[0] == CONCLUSION.plan
    assert any(len(candidate.groups) == 1 for candidate in proposed)
    assert len(proposed) == MAX_CANDIDATES
    assert len({candidate.fingerprint for candidate in proposed}) == MAX_CANDIDATES


def test_similar_plans_are_replaced_by_different_ones() -> None:
    """The model prefers five of LIBRA's plans here to any plan of another planner."""
    proposed = [
        candidate
        for candidate, _ in select_candidates(CONCLUSION, strategies.Libra(), runs_streams=False)
    ]
    alike = [pair for pair in itertools.combinations(proposed, 2) if distance(*pair) < 1]
    assert not alike


@pytest.mark.parametrize(
    ("contention", "expected"), [(None, 1.5), (2.5, 2.5)], ids=["nobody knows", "measured"]
)
def test_two_stream_plans_have_the_measured_gamma(
    contention: float | None, expected: float
) -> None:
    """Plans of another planner, of another job's outline, and the active one have this gamma."""
    conclusion = replace(CONCLUSION, contention=contention)
    specs = tensor_specs(PROFILE)
    two_streams = two_stream_plan(PROFILE, 1, NUM_WORKERS)
    start = WarmStart(
        JobSignature.from_tensors(specs, NUM_WORKERS, 1),
        "aiacc",
        PlanOutline.from_plan(two_streams),
    )
    warm_plan = warm_start_plan(conclusion, strategies.Libra(), True, start)
    assert warm_plan is not None and warm_plan.num_streams == 2
    assert warm_plan.contention == expected
    true = replace(warm_plan, contention=expected)
    assert warm_plan.predicted_seconds == simulate(PROFILE, true, MODEL).backward_seconds
    active_plan = replace(two_streams, contention=1.1)
    of_two = [
        plan
        for plan, _ in select_candidates(conclusion, strategies.Libra(), True, active_plan)
        if plan.num_streams > 1
    ]
    assert active_plan.fingerprint in {plan.fingerprint for plan in of_two}
    assert {plan.contention for plan in of_two} == {expected}


@pytest.mark.parametrize("planned", [False, True], ids=["by nobody now", "by a planner now, too"])
def test_active_plan_is_a_candidate_with_a_new_prediction(planned: bool) -> None:
    """The prediction and the notes of an active plan are out of date."""
    proposed = select_candidates(CONCLUSION, strategies.Libra(), runs_streams=False)
    own = replace(plan([3, 10], [1, 2], tuple(SIZES)), num_workers=NUM_WORKERS)
    active_plan = proposed[-1][0] if planned else own
    of_then = replace(active_plan, predicted_seconds=9.0, notes=("race over 12 rounds: of then",))
    again = [
        candidate
        for candidate, _ in select_candidates(CONCLUSION, strategies.Libra(), False, of_then)
    ]
    [found] = [candidate for candidate in again if candidate.fingerprint == of_then.fingerprint]
    assert found.predicted_seconds == simulate(PROFILE, found, MODEL).backward_seconds
    assert found.notes == () and found.strategy == of_then.strategy


def two_streams_of(num_threads: int) -> Plan:
    """Returns the plan with alternating streams and more threads than MODEL supports."""
    plan = two_stream_plan(PROFILE, num_threads, NUM_WORKERS)
    assert CONCLUSION.predicted(plan) is None
    return plan


def test_active_plan_without_a_prediction_is_a_candidate() -> None:
    """An earlier model made the active plan."""
    active_plan = two_streams_of(20)
    proposed = select_candidates(CONCLUSION, strategies.Libra(), True, active_plan)
    [predicted] = [
        seconds for plan, seconds in proposed if plan.fingerprint == active_plan.fingerprint
    ]
    assert predicted is None
    assert proposed[-1][0].fingerprint == active_plan.fingerprint  # the least promising
    assert all(seconds is not None for _, seconds in proposed[:-1])


def test_candidates_are_ranked_by_step_with_updates() -> None:
    """One group has the shortest backward pass, but its updates begin after it."""
    cost = replace(MODEL, hop_latency=1e-3, compute=(1.0, 0.0))
    updates = [size * 4e-9 for size in SIZES]
    profile = BackwardProfile.from_arrays(
        SIZES, [1e-5] * len(SIZES), PROFILE.names, update_seconds=updates
    )
    libra = strategies.Libra(threads=(1,))
    conclusion = replace(
        CONCLUSION,
        plan=make_plan(profile, cost, strategies.SynEasgd()),
        profile=profile,
        cost_model=cost,
    )
    proposed = select_candidates(conclusion, libra, runs_streams=False)
    steps = [simulate(profile, plan, cost).step_seconds for plan, _ in proposed]
    backwards = [simulate(profile, plan, cost).backward_seconds for plan, _ in proposed]
    assert steps[1:] == sorted(steps[1:])
    assert backwards[1:] != sorted(backwards[1:])
    assert min(steps[1:]) < steps[0]


def test_single_tensor_limits_the_candidates() -> None:
    """With one core and no startup, every planner merges everything."""
    profile = BackwardProfile.from_arrays([4_000_000], [0.01], ["only"])
    conclusion = replace(CONCLUSION, plan=make_plan(profile, MODEL, "libra"), profile=profile)
    proposed = [
        candidate
        for candidate, _ in select_candidates(conclusion, strategies.Libra(), runs_streams=False)
    ]
    assert (
        1
        <= len({candidate.fingerprint for candidate in proposed})
        == len(proposed)
        <= MAX_CANDIDATES
    )


@pytest.mark.parametrize("threads", [(1,), (1, 2, 4)])
def test_model_without_a_gain_selects_different_plans(
    threads: tuple[int, ...],
) -> None:
    """A machine may run plans of many groups fastest although its model predicts no gain."""
    model = ProcessorModel(NUM_WORKERS, 1e-3, 1e-9, 1e-9, 1.0, 1e-6)
    libra = strategies.Libra(threads=threads)
    conclusion = replace(CONCLUSION, plan=make_plan(PROFILE, model, libra), cost_model=model)
    proposed = [
        candidate for candidate, _ in select_candidates(conclusion, libra, runs_streams=False)
    ]
    counts = [len(candidate.groups) for candidate in proposed]
    assert max(counts) >= 4 * min(counts)


def test_distance_is_counted_in_factors_of_two() -> None:
    assert distance(plan([4], [1]), plan([4], [1])) == 0
    assert distance(plan([4], [1]), plan([4], [2])) == pytest.approx(1)
    assert distance(plan([4], [1]), plan([2, 4], [1, 1])) == pytest.approx(2)
    assert distance(plan([2, 4], [1, 1]), plan([2, 4], [1, 4])) == pytest.approx(1)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    sizes = tuple(draw(st.lists(st.integers(0, 100), min_size=4, max_size=4)))
    inner = sorted(draw(st.sets(st.integers(1, 3))))
    ends = [*inner, 4]
    threads = draw(st.lists(st.integers(1, 4), min_size=len(ends), max_size=len(ends)))
    return plan(ends, threads, sizes)


@given(plans(), plans())
def test_distance_is_a_metric(first: Plan, other: Plan) -> None:
    other = replace(other, num_bytes=first.num_bytes)
    assert distance(first, first) == 0
    assert distance(first, other) == pytest.approx(distance(other, first))
    assert distance(first, other) >= 0
    if len(first.groups) != len(other.groups):
        assert distance(first, other) > 0
