"""Drift detection in step times, and the cost of retuning."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tf_libra.autotune.drift_detector import PATIENCE, DriftDetector

CHECK = 8


def looks(drift: DriftDetector, seconds: float, count: int = 1, num_steps: int = 1) -> None:
    for _ in range(count):
        for _ in range(CHECK):
            drift.record_step(seconds, num_steps)
        drift.check()


def test_first_check_sets_an_unknown_expected_time() -> None:
    drift = DriftDetector(0.02, None)
    looks(drift, 0.1)
    assert drift.expected_seconds == drift.measured_seconds == 0.1
    assert not drift.has_drifted


def test_drift_needs_several_deviating_checks() -> None:
    drift = DriftDetector(0.02, 0.1)
    for _ in range(3):
        looks(drift, 0.2, PATIENCE - 1)
        assert not drift.has_drifted
        looks(drift, 0.1)
    looks(drift, 0.2, PATIENCE)
    assert drift.has_drifted and not drift.has_recovered
    looks(drift, 0.1, PATIENCE)
    assert drift.has_recovered and not drift.has_drifted


def test_faster_than_expected_is_a_drift_too() -> None:
    drift = DriftDetector(0.02, 0.1)
    looks(drift, 0.05, PATIENCE)
    assert drift.has_drifted


@given(st.lists(st.floats(0.085, 0.118), min_size=50, max_size=200))
def test_noise_is_no_drift(seconds: list[float]) -> None:
    drift = DriftDetector(0.02, 0.1)
    for step_seconds in seconds:
        looks(drift, step_seconds)
        assert not drift.has_drifted


def test_few_long_steps_are_no_drift() -> None:
    drift = DriftDetector(0.02, 0.1)
    for _ in range(20):
        for index in range(CHECK):
            drift.record_step(3.0 if index % 3 == 0 else 0.1)
        drift.check()
        assert not drift.has_drifted


def test_steps_per_graph_are_compared_separately() -> None:
    """Steps that share a graph take less time each, which is no drift."""
    drift = DriftDetector(0.02, 0.1)
    looks(drift, 0.05, 3, num_steps=8)
    assert not drift.has_drifted
    assert drift.expected_seconds == 0.05
    drift.record_step(0.1)  # a few that are single
    looks(drift, 0.1, PATIENCE, num_steps=8)
    assert drift.has_drifted
    drift.on_retuned(0.1)
    looks(drift, 0.2, 2 * PATIENCE)
    assert drift.has_drifted


def test_check_without_steps_changes_nothing() -> None:
    drift = DriftDetector(0.02, 0.1)
    drift.check()
    assert drift.measured_seconds is None


@settings(max_examples=50)
@given(st.floats(0.001, 1), st.floats(0, 3), st.integers(1, 16))
def test_trials_cost_at_most_their_share(share: float, extra: float, dose: int) -> None:
    """The cost of the first burst is estimated; later ones use measured costs."""
    drift = DriftDetector(share, 0.1)
    total = cost = guess = 0.0
    for _ in range(300):
        looks(drift, 0.1)
        total += CHECK * 0.1
        if drift.affords(dose):
            for _ in range(dose):
                drift.record_trial(0.1 * (1 + extra))
            if guess == 0.0:
                guess = dose * 0.1 * extra
            total += dose * 0.1 * (1 + extra)
            cost += dose * 0.1 * extra
    assert cost - guess <= share * total + 1e-9


def test_patience_doubles_until_checks_are_stable() -> None:
    drift = DriftDetector(1.0, 0.1)
    waited = []
    for _ in range(3):
        count = 0
        while not drift.has_drifted:
            looks(drift, 0.2)
            count += 1
        waited.append(count)
        drift.on_retuned(0.1)
    assert waited == [PATIENCE, 2 * PATIENCE, 4 * PATIENCE]
    looks(drift, 0.1, 200)
    looks(drift, 0.2, PATIENCE)
    assert drift.has_drifted
