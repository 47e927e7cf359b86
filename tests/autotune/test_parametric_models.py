"""Vectorized costs against those of single models."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.autotune.parametric_models import CpuShareFamily

THREADS = (1, 2, 5)
parameters = st.floats(-12, 12).map(np.exp)
sizes = st.integers(0, 10**9)

families = st.builds(
    CpuShareFamily,
    st.integers(2, 64),
    st.one_of(st.none(), parameters),
    st.integers(1, 8),
    st.sampled_from([2, 1, 3, None]),
    st.sampled_from([None, 1, 2, 4]),
)


@given(
    families,
    st.lists(st.tuples(*[parameters] * 4), min_size=1, max_size=3),
    st.lists(st.tuples(sizes, st.sampled_from(THREADS)), min_size=1, max_size=4),
)
def test_costs_are_those_of_each_model(
    family: CpuShareFamily, rows: list[tuple[float, ...]], all_reduces: list[tuple[int, int]]
) -> None:
    num_bytes, threads = np.array([all_reduces, all_reduces[::-1]]).transpose(2, 0, 1)
    costs = family.costs(np.array(rows), num_bytes, threads)
    for row, coefficients in enumerate(rows):
        model = family.model(coefficients)
        for found, expected in (
            (costs.waiting + costs.overlapped, model.overlapped_all_reduce(num_bytes, threads)),
            (costs.waiting + costs.exclusive, model.exclusive_all_reduce(num_bytes, threads)),
            (costs.rates, model.compute_rate(threads)),
            (costs.mean_rates, model.mean_compute_rate(num_bytes, threads)),
            (costs.waiting, model.waiting * (num_bytes > 0)),
        ):
            assert found[row] == pytest.approx(expected, rel=1e-9, abs=0)


def test_unknown_core_time_leaves_all_cores_to_computation() -> None:
    family = CpuShareFamily(2, 0.0)
    assert family.model((1e-4, 1e-9, 0.0, 0.0)).compute_rate(4) == pytest.approx(1, abs=0.01)
