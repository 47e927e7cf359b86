"""The measurements of layers and links, as the profile that bursts are planned by."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tf_libra.model_parallel.planning.burst import (
    data_parallel,
    make_burst_plan,
    measured_counts,
)
from tf_libra.model_parallel.planning.burst.measured_scaling import (
    ActivationFlow,
    MeasuredScaling,
    at_counts,
    crossing,
    moved_share,
    num_partners,
)
from tf_libra.model_parallel.planning.link_rates import AllReduces, LinkRates
from tf_libra.specs.cluster import Cluster

Array = NDArray[np.float64]
COUNTS = st.integers(1, 6)


@given(COUNTS, COUNTS, st.integers(0, 6))
def test_only_missing_bytes_move(sources: int, targets: int, first: int) -> None:
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


def test_skip_connection_passes_every_layer_of_a_chain() -> None:
    between = {
        (0, 1): ActivationFlow(1.0),
        (0, 2): ActivationFlow(2.0, 5.0, 2),
        (2, 3): ActivationFlow(4.0, 0.0, 1),
    }
    assert crossing(4, between) == {
        (0, 1): ActivationFlow(3.0, 5.0, 2),
        (1, 2): ActivationFlow(2.0, 5.0, 2),
        (2, 3): ActivationFlow(4.0, 0.0, 1),
    }


def test_a_profile_by_hand() -> None:
    """1000 bytes per second among the first two ranks, 100 to the others."""
    rates = np.full((4, 4), 100.0)
    rates[:2, :2] = 1000.0
    compute = np.array([[4.0, 2.0, 1.0], [8.0, 5.0, 4.0]])
    measured = MeasuredScaling(
        (1, 2, 4),
        ("one", "two"),
        compute,
        (600.0, 0.0),
        AllReduces((0.0, 0.0, 0.0), (1.0, 300.0, 60.0)),
        LinkRates(Cluster.from_bandwidth(rates), 0.0),
        8,
        0.0,
    )
    profile = measured.profile({(0, 1): ActivationFlow(sample_bytes=400.0, other_bytes=80.0)})
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


def chain(
    compute: Array, num_bytes: Array, startup: float, message: float, stage: float
) -> MeasuredScaling:
    """Layers on 1, 2 and 4 ranks, with links that take a microsecond per kilobyte."""
    rates = np.full((4, 4), 1e9)
    return MeasuredScaling(
        (1, 2, 4),
        tuple(f"layer_{i}" for i in range(len(compute))),
        compute,
        num_bytes,
        AllReduces((0.0, startup, 2 * startup), (1.0, 1e9, 1e9)),
        LinkRates(Cluster.from_bandwidth(rates), message),
        8,
        stage,
    )


@st.composite
def layers(draw: st.DrawFn) -> tuple[Array, Array, dict[tuple[int, int], ActivationFlow]]:
    """Computation at every number of ranks, parameters, and what flows."""
    count = draw(st.integers(2, 6))
    alone = np.array(draw(st.lists(st.floats(1e-5, 1e-2), min_size=count, max_size=count)))
    serial = np.array(draw(st.lists(st.floats(0, 1), min_size=count, max_size=count)))
    compute = np.stack([alone * (serial + (1 - serial) / g) for g in (1, 2, 4)], axis=1)
    num_bytes = np.array(
        draw(st.lists(st.sampled_from([0.0, 1e3, 1e6]), min_size=count, max_size=count))
    )
    size = st.sampled_from([1e3, 1e5, 1e6])
    between = {(i, i + 1): ActivationFlow(draw(size), 0.0, 2) for i in range(count - 1)}
    return compute, num_bytes, between


@given(layers(), st.floats(0, 1e-3), st.floats(0, 1e-3), st.floats(0, 1e-3))
def test_startups_stand_in_every_all_reduce_and_every_transition(
    drawn: tuple[Array, Array, dict[tuple[int, int], ActivationFlow]],
    startup: float,
    message: float,
    stage: float,
) -> None:
    compute, num_bytes, between = drawn
    with_them = chain(compute, num_bytes, startup, message, stage).profile(between)
    without = chain(compute, num_bytes, 0.0, 0.0, 0.0).profile(between)
    more = (with_them.synchronize_seconds - without.synchronize_seconds).sum(axis=0)
    # All layers on the same ranks are all-reduced together.
    once = float(num_bytes.any())
    np.testing.assert_allclose(more, [0.0, once * startup, 2 * once * startup], atol=1e-12)
    assert with_them.move_seconds is not None and without.move_seconds is not None
    reduced = np.array([0.0, startup, 2 * startup])
    for more in with_them.transition_seconds - without.transition_seconds:
        for row, g in enumerate((1, 2, 4)):
            for column, h in enumerate((1, 2, 4)):
                messages = 2 * message * num_partners(range(g), range(h))
                wanted = messages + stage + reduced[column] if g != h else 0.0
                assert more[row, column] == pytest.approx(wanted, abs=1e-12)
    # On ranks of its own a layer has always to be reached.
    for more in with_them.move_seconds - without.move_seconds:
        assert (more >= 2 * message + stage - 1e-12).all()


@given(layers(), st.floats(1e-6, 1e-2))
def test_bursts_do_not_pay_for_what_takes_less_than_a_startup(
    drawn: tuple[Array, Array, dict[tuple[int, int], ActivationFlow]], startup: float
) -> None:
    """Each change of ranks is made up for by what the layers between save."""
    compute, num_bytes, between = drawn
    profile = chain(compute, num_bytes, startup, startup, startup).profile(between)
    plan = make_burst_plan(profile)
    changes = np.count_nonzero(np.diff(plan.num_devices))
    best = min(candidate.iteration_seconds for candidate in data_parallel(profile))
    least = compute.min(axis=1).sum()
    assert least + changes * 3 * startup <= plan.iteration_seconds * (1 + 1e-9)
    assert plan.iteration_seconds <= best * (1 + 1e-9)
    if startup >= compute[:, 0].sum():
        assert len(set(plan.num_devices)) == 1


@given(COUNTS, COUNTS, st.integers(0, 6))
def test_partners_are_the_others_that_a_rank_exchanges_samples_with(
    sources: int, targets: int, first: int
) -> None:
    sent, received = np.zeros((20, 20), bool), np.zeros((20, 20), bool)
    for sample in range(sources * targets):
        source, target = sample // targets, first + sample // sources
        if source != target:
            sent[source, target] = received[target, source] = True
    most = max(sent.sum(axis=1).max(), received.sum(axis=1).max())
    assert num_partners(range(sources), range(first, first + targets)) == most


@pytest.mark.parametrize("num_counts", range(1, 9))
def test_some_numbers_of_ranks_tell_the_computation_of_all(num_counts: int) -> None:
    """A part of each layer's time does not shrink with the number of examples."""
    counts = tuple(2**i for i in range(num_counts))
    chosen = measured_counts(counts)
    assert len(chosen) == min(num_counts, 4) and {1, counts[-1]} <= set(chosen) <= set(counts)
    fixed, whole = np.array([0.1, 0.0, 0.3]), np.array([1.0, 2.0, 0.0])
    found = at_counts({count: fixed + whole / count for count in chosen}, counts)
    np.testing.assert_allclose(found, fixed[:, None] + whole[:, None] / np.array(counts))
