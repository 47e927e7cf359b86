import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planning.data_parallel import reference
from tf_libra.cost_model import (
    ContentionModel,
    OverlapSample,
    computation_errors,
    fit,
    prediction_errors,
)

TRUE = ContentionModel(2, 0.4e-3, (1.02, 0.08), (1.2e9, 0.9e9, 0.6), (1.6e9, 0.8e9, 0.9))


def sample(model, num_bytes, threads, hidden, noise=(1.0, 1.0, 1.0)):
    """One all-reduce by the model, of which this share overlaps computation."""
    overlap = float(model.overlapped_all_reduce(num_bytes, threads)) * hidden * noise[0]
    residual = float(model.exclusive_all_reduce(num_bytes, threads)) * (1 - hidden) * noise[1]
    compute = overlap * float(model.compute_rate(threads)) * noise[2]
    return OverlapSample(num_bytes, threads, compute, overlap, residual)


def draw(model, count, threads, seed=0, noise=0.0, outliers=0.0, hidden=None):
    rng = np.random.default_rng(seed)
    return [
        sample(
            model,
            int(rng.lognormal(14, 1.5)) + 1,
            int(rng.choice(threads)),
            hidden if hidden is not None else float(rng.choice([0, rng.random(), 1])),
            np.exp(rng.normal(0, noise, 3)) * (4.0 if rng.random() < outliers else 1.0),
        )
        for _ in range(count)
    ]


def median_error(model, samples):
    return float(np.median(np.abs(prediction_errors(model, samples))))


def test_errors_of_true_model_are_zero():
    samples = draw(TRUE, 50, (1, 2, 4))
    assert np.abs(prediction_errors(TRUE, samples)).max() < 1e-12
    assert np.abs(computation_errors(TRUE, samples)).max() < 1e-12


def test_error_is_relative_and_signed():
    [step] = draw(TRUE, 1, (2,), hidden=0.0)
    slow = dataclasses.replace(step, residual_seconds=2 * step.residual_seconds)
    assert prediction_errors(TRUE, [slow]) == pytest.approx([-0.5])


def test_recovers_the_model_without_noise():
    result = fit(draw(TRUE, 100, (1, 2, 4)), 2)
    assert result.median_error < 1e-4
    assert result.median_computation_error < 1e-4
    assert result.model.hop_latency == pytest.approx(TRUE.hop_latency, rel=1e-3)
    assert result.model.compute == pytest.approx(TRUE.compute, rel=1e-3)
    assert result.model.exclusive_hop_latency is None
    assert result.warnings == ()
    held_out = draw(TRUE, 100, (1, 2, 3, 4), seed=1)
    assert median_error(result.model, held_out) < 1e-3


@pytest.mark.parametrize(("count", "most"), [(40, 0.15), (300, 0.06)])
def test_fit_is_robust_to_noise_and_outliers(count, most):
    samples = draw(TRUE, count, (1, 2, 4), noise=0.15, outliers=0.05)
    result = fit(samples, 2)
    assert median_error(result.model, draw(TRUE, 200, (1, 2, 4), seed=1)) < most
    assert result.model.compute_rate(4) == pytest.approx(TRUE.compute_rate(4), rel=0.2)


def test_fit_finds_separate_exclusive_startup():
    true = dataclasses.replace(TRUE, hop_latency=1e-3, exclusive_hop_latency=4e-4)
    result = fit(draw(true, 100, (1, 2, 4), noise=0.05), 2)
    assert result.model.exclusive_hop_latency == pytest.approx(4e-4, rel=0.2)
    assert result.model.hop_latency == pytest.approx(1e-3, rel=0.2)
    assert any("separate startup overhead" in note for note in result.notes)


def test_fitted_model_predicts_another_world_size():
    samples = draw(TRUE.with_workers(8), 100, (1, 2, 4))
    result = fit(samples, 8)
    held_out = draw(TRUE.with_workers(4), 100, (1, 2, 4), seed=1)
    assert median_error(result.model.with_workers(4), held_out) < 1e-3


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (draw(TRUE, 20, (2,)), ["alpha2", "overlapped: r = 2 only", "exclusive: r = 2 only"]),
        (draw(TRUE, 20, (1, 4)), ["overlapped: two thread counts", "exclusive: two thread"]),
        (draw(TRUE, 20, (1, 2, 4), hidden=0.0), ["overlapped: no sample", "no contention"]),
        (draw(TRUE, 20, (1, 2, 4), hidden=1.0), ["exclusive: no sample"]),
    ],
)
def test_notes_name_undetermined_parameters(samples, words):
    notes = " ".join(fit(samples, 2).notes)
    for word in words:
        assert word in notes


def test_notes_name_undetermined_startup():
    # One size: its startup overhead and its transmission cannot be distinguished.
    samples = [sample(TRUE, 10**8, r, hidden) for r in (1, 2, 4) for hidden in (0.0, 1.0)]
    assert any("the startup overhead is hardly" in note for note in fit(samples, 2).notes)


@pytest.mark.parametrize(
    ("true", "word"),
    [
        (dataclasses.replace(TRUE, overlapped=(3e9, 0, 0)), "Assumption 2"),
        (dataclasses.replace(TRUE, compute=(0.4, 0.08), overlapped=(2e8, 0, 0)), "Assumption 3"),
        (dataclasses.replace(TRUE, compute=(1.5, 0.1)), "profiled alone"),
    ],
)
def test_fit_warns_if_an_assumption_fails(true, word):
    assert any(word in warning for warning in fit(draw(true, 100, (1, 2, 4)), 2).warnings)


def test_fit_warns_if_more_threads_are_slower():
    slower = {1: 2e9, 2: 1.5e9, 4: 1e9}
    samples = [
        sample(dataclasses.replace(TRUE, exclusive=(slower[r], 0, 0)), 10**6 * i, r, 0.0)
        for r in slower
        for i in range(1, 10)
    ]
    assert any("never falls with r" in warning for warning in fit(samples, 2).warnings)


@settings(max_examples=25, deadline=None)
@given(
    reference.any_costs((1, 2, 4)),
    st.lists(st.sampled_from([1, 2, 4, 1000, 1001]), min_size=1, max_size=3, unique=True),
    st.integers(1, 30),
    st.integers(0, 9),
)
def test_fit_is_finite_and_positive_for_any_samples(true, threads, count, seed):
    rng = np.random.default_rng(seed)
    samples = [
        OverlapSample(
            int(rng.lognormal(12, 4)) + 1,
            int(rng.choice(threads)),
            *(rng.lognormal(-6, 3, 2) * rng.integers(0, 2)),
            rng.lognormal(-6, 3),
        )
        for _ in range(count)
    ]
    result = fit(samples, 3)
    seen = sorted({s.num_threads for s in samples})
    rates = result.model.compute_rate(seen)
    assert np.all(rates > 0)
    assert np.all(rates <= 1 + 1e-9)
    assert np.all(result.model.overlapped_rate(seen) > 0)
    assert np.all(result.model.exclusive_rate(seen) > 0)
    assert math.isfinite(result.median_error)


@settings(max_examples=30, deadline=None)
@given(
    reference.any_costs((1, 2, 4, 64)),
    st.lists(st.sampled_from([1, 2, 4, 64]), min_size=1, max_size=4, unique=True),
    st.integers(1, 60),
    st.integers(0, 9),
    st.sampled_from([0.0, 0.2, 2.0]),
)
def test_fit_satisfies_assumptions_2_and_3_for_any_samples(true, threads, count, seed, noise):
    samples = draw(true.with_workers(3), count, threads, seed, noise)
    result = fit(samples, 3)
    assert reference.obeys_assumptions(result.model, {s.num_threads for s in samples})


@settings(max_examples=15, deadline=None)
@given(reference.lawful_costs((1, 2, 4)), st.integers(0, 9))
def test_fit_recovers_models_that_keep_the_assumptions(true, seed):
    true = true.with_workers(max(true.num_workers, 2))
    samples = draw(true, 60, (1, 2, 4), seed)
    result = fit(samples, true.num_workers)
    assert result.median_error < 1e-2


def test_fit_is_closest_model_within_assumptions():
    # Next to computation everything is twice as fast as alone: the best is a rate in between.
    twice = tuple(2 * g for g in TRUE.exclusive[:2])
    fast = dataclasses.replace(TRUE, compute=(1.0, 0.0), overlapped=(*twice, TRUE.exclusive[2]))
    samples = draw(fast, 200, (1, 2, 4))
    result = fit(samples, 2)
    assert any("Assumption 2" in warning for warning in result.warnings)
    assert any("fitted again" in note for note in result.notes)
    p, q = result.model.overlapped_rate((1, 2, 4)), result.model.exclusive_rate((1, 2, 4))
    assert p == pytest.approx(q, rel=1e-3)
    assert np.all(q > TRUE.exclusive_rate((1, 2, 4)))
    assert np.all(p < fast.overlapped_rate((1, 2, 4)))
    assert result.median_error < 0.5


def test_fit_preserves_hops():
    lanes = dataclasses.replace(TRUE, hops=2).with_workers(4)
    result = fit(draw(lanes, 100, (1, 2, 4)), 4, hops=2)
    assert result.model.hops == 2
    assert result.model.hop_latency == pytest.approx(TRUE.hop_latency, rel=1e-3)
    held_out = draw(lanes.with_workers(16), 50, (1, 2, 4), seed=1)
    assert median_error(result.model.with_workers(16), held_out) < 1e-3


def test_wrong_argument_is_named():
    samples = draw(TRUE, 5, (1, 2))
    with pytest.raises(ValueError, match="samples must hold at least one"):
        fit([], 2)
    with pytest.raises(ValueError, match="num_workers must be from 2"):
        fit(samples, 1)
    with pytest.raises(ValueError, match=r"exponent.*0"):
        fit(samples, 2, exponent=0)
    with pytest.raises(ValueError, match="exponent"):
        fit(samples, 2, exponent=2000)
    with pytest.raises(ValueError, match=r"samples\[0\] must be a OverlapSample, got int"):
        fit([1, 2], 2)
    with pytest.raises(ValueError, match=r"num_workers.*2"):
        prediction_errors(TRUE.with_workers(1), samples)
