"""Vectorized costs against those of single models."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.data_parallel import reference
from tf_libra.autotune.parametric_models import CpuShareFamily, Family, ScaledContentionFamily

THREADS = (1, 2, 5)
parameters = st.floats(-12, 12).map(np.exp)
sizes = st.integers(0, 10**9)

processors = st.builds(
    CpuShareFamily,
    st.integers(2, 64),
    st.sampled_from([2, 1, 3, None]),
    st.sampled_from([None, 1, 2, 4]),
)
models = reference.lawful_costs(THREADS).map(
    lambda model: replace(model, num_workers=max(model.num_workers, 2))
)


@given(
    st.one_of(
        st.tuples(processors, st.lists(st.tuples(*[parameters] * 6), min_size=1, max_size=3)),
        st.tuples(
            models.map(ScaledContentionFamily),
            st.lists(st.tuples(*[parameters] * 2), min_size=1, max_size=3),
        ),
    ),
    st.lists(st.tuples(sizes, st.sampled_from(THREADS)), min_size=1, max_size=4),
)
def test_costs_are_those_of_each_model(
    candidates: tuple[Family, list[tuple[float, ...]]], all_reduces: list[tuple[int, int]]
) -> None:
    family, rows = candidates
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
