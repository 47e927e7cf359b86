"""One all-reduce concurrent with one computation: no work is lost, and none done twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.simulation.sequential import stage_times

seconds = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))
rates = st.floats(0.05, 1.0)


@given(seconds, st.floats(0.1, 1.0), seconds, rates)
def test_stage_completes_communication_and_computation(overlapped, share, compute, rate):
    exclusive = share * overlapped  # alone it is no slower
    overlap, left, residual = stage_times(overlapped, exclusive, compute, rate)
    assert min(overlap, left, residual) >= 0
    assert overlap * rate + left == pytest.approx(compute, abs=1e-15)
    sent = (overlap / overlapped if overlapped else 1.0) + (
        residual / exclusive if exclusive else 0
    )
    assert sent == pytest.approx(1.0)
    # What is left is of one of them.
    assert left == 0 or residual == 0


@given(seconds, seconds, rates)
def test_shorter_activity_ends_the_overlap(overlapped, compute, rate):
    overlap, _, _ = stage_times(overlapped, overlapped, compute, rate)
    assert overlap == min(overlapped, compute / rate)


def test_no_computation_has_no_overlap():
    assert stage_times(2.0, 1.5, 0.0, 0.5) == (0.0, 0.0, 1.5)
    assert stage_times(0.0, 0.0, 3.0, 0.5) == (0.0, 3.0, 0.0)
