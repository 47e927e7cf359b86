"""What is measured of layers and links, as the profile that bursts are planned by."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.model.cluster import Cluster
from tf_libra.pipelines.scaling import Flow, Measured, crossing, moved_share

COUNTS = st.integers(1, 6)


@given(COUNTS, COUNTS, st.integers(0, 6))
def test_what_moves_is_what_is_not_there(sources: int, targets: int, first: int) -> None:
    """Sample by sample, of as many as both divide."""
    size = sources * targets
    sent, received = np.zeros(20), np.zeros(20)
    for sample in range(size):
        source, target = sample * sources // size, first + sample * targets // size
        if source != target:
            sent[source] += 1 / size
            received[target] += 1 / size
    found = moved_share(range(sources), range(first, first + targets))
    assert found == pytest.approx(max(sent.max(), received.max()))


def test_what_goes_further_passes_every_layer_of_a_chain() -> None:
    between = {(0, 1): Flow(1.0), (0, 2): Flow(2.0, 5.0), (2, 3): Flow(4.0)}
    assert crossing(4, between) == {
        (0, 1): Flow(3.0, 5.0),
        (1, 2): Flow(2.0, 5.0),
        (2, 3): Flow(4.0),
    }


def test_a_profile_by_hand() -> None:
    """1000 bytes per second among the first two ranks, 100 to the others."""
    rates = np.full((4, 4), 100.0)
    rates[:2, :2] = 1000.0
    compute = np.array([[4.0, 2.0, 1.0], [8.0, 5.0, 4.0]])
    measured = Measured(
        (1, 2, 4),
        ("one", "two"),
        compute,
        (600.0, 0.0),
        (1.0, 300.0, 60.0),
        Cluster.from_bandwidth(rates),
        8,
    )
    profile = measured.profile({(0, 1): Flow(sample_bytes=400.0, other_bytes=80.0)})
    np.testing.assert_array_equal(profile.compute_seconds, compute)
    np.testing.assert_allclose(profile.synchronize_seconds, [[0.0, 2.0, 10.0], [0.0, 0.0, 0.0]])
    [transition] = profile.transition_seconds
    np.testing.assert_allclose(np.diag(transition), 0.0)
    # Half of the samples go to the second rank, and all of what is no sample.
    assert transition[0, 1] == pytest.approx((200 + 80) / 1000)
    assert transition[1, 0] == pytest.approx(200 / 1000)
    assert transition[0, 2] == pytest.approx((300 + 80) / 100)
    assert profile.move_seconds is not None
    [moved] = profile.move_seconds
    assert moved[0, 0] == pytest.approx((400 + 80) / 1000)
    assert moved[1, 1] == pytest.approx((200 + 80) / 100)
    assert profile.batch == 8 and profile.is_chain
