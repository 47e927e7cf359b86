"""Stages on chunks against the equations that they are made of, one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra.planning.data_parallel.chunked_costs import ChunkedCosts
from tf_libra.simulation.sequential import stage_times

THREADS = (1, 2, 5)


@settings(max_examples=num_examples(60), deadline=None)
@given(reference.profiles(), reference.lawful_costs(THREADS), st.integers(1, 30))
def test_a_stage_takes_its_chunks_and_an_extra(profile, cost, chunks):
    """The costs hold for any size and threads, next to any number of chunks (Eqs. 8-11)."""
    costs = ChunkedCosts(profile, cost, THREADS, chunks)
    width = float(profile.compute_after[0]) / chunks
    sizes = np.unique(profile.bytes_before)[1:]
    hidden, extra = costs.hidden_chunks(sizes), costs.hidden_extra(sizes)
    last, per_chunk = costs.residual_extra(sizes)
    for j, threads in enumerate(THREADS):
        for n, size in enumerate(sizes):
            for d in range(chunks + 1):
                overlapped = float(cost.overlapped_all_reduce(size, threads))
                exclusive = float(cost.exclusive_all_reduce(size, threads))
                rate = float(cost.mean_compute_rate(size, threads))
                overlap, left, residual = stage_times(overlapped, exclusive, d * width, rate)
                taken = overlap + left + residual
                if hidden[j, n] <= d:  # Eq. 19
                    assert residual <= 1e-6 * taken
                    assert d * width + extra[j, n] == pytest.approx(taken, rel=1e-6, abs=1e-12)
                else:
                    with_extra = d * width + last[j, n] + d * per_chunk[j, n]
                    assert with_extra == pytest.approx(taken, rel=1e-6, abs=1e-12)


@settings(max_examples=num_examples(60), deadline=None)
@given(reference.profiles(), reference.lawful_costs(THREADS), st.integers(1, 30))
def test_tensors_are_there_at_the_first_edge_after_them(profile, cost, chunks):
    costs = ChunkedCosts(profile, cost, THREADS, chunks)
    total = float(profile.compute_after[0])
    produced = total - profile.compute_after
    edges = np.arange(chunks + 1) * (total / chunks)
    for tensors, edge in enumerate(costs.first_chunk):
        assert edges[edge] >= produced[tensors] * (1 - 1e-6)
        assert edge == 0 or edges[edge - 1] < produced[tensors]
