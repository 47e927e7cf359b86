import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra.planning.data_parallel import dynamic_program
from tf_libra.planning.data_parallel.chunked_costs import ChunkedCosts

THREADS = (1, 2, 5)
many = settings(max_examples=num_examples(300), deadline=None)
some = settings(max_examples=num_examples(150), deadline=None)


def solve(profile, costs, max_groups):
    return dynamic_program.solve(profile, costs, min(max_groups, len(profile.tensors)))


@some
@given(
    reference.profiles(max_tensors=4),
    reference.any_costs((1, 3)),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_solution_equals_algorithm_1(profile, cost, max_groups, chunks):
    costs = ChunkedCosts(profile, cost, (1, 3), chunks)
    seconds, stops, threads = dynamic_program.solve(
        profile, costs, min(max_groups, len(profile.tensors))
    )
    assert seconds == pytest.approx(
        reference.algorithm1(profile, cost, max_groups, chunks, (1, 3)), rel=1e-8
    )
    assert len(stops) == len(threads) <= max_groups


@many
@given(reference.profiles(), reference.lawful_costs(THREADS), st.integers(1, 4), st.integers(1, 12))
def test_chunks_only_delay(profile, cost, max_groups, chunks):
    costs = ChunkedCosts(profile, cost, THREADS, chunks)
    seconds, stops, threads = dynamic_program.solve(
        profile, costs, min(max_groups, len(profile.tensors))
    )
    assert reference.simulate(profile, cost, stops, threads) <= seconds * (1 + 1e-9)


def test_a_chunk_edge_missed_by_rounding_still_counts():
    # 10 chunks of 0.1 sum to less than 1.
    profile = tf_libra.BackwardProfile.from_arrays([10, 10], [0.1 * 3, 0.1 * 7])
    cost = tf_libra.ContentionModel(2, 0.0, (1.0, 0.0), (100 / 3, 0, 0), (100 / 3, 0, 0))
    costs = ChunkedCosts(profile, cost, (1,), 10)
    assert costs.first_chunk.tolist() == [0, 3, 10]
    assert costs.hidden_chunks(profile.num_bytes[:1]).tolist() == [[3]]


def test_few_splits_of_many_tensors_are_evaluated(monkeypatch):
    """Each takes time linear in the tensors; a lower bound on all of them is known immediately."""
    looked = []
    hidden_before = dynamic_program._hidden_before

    def counted(*args):
        looked.append(args[-1])
        return hidden_before(*args)

    monkeypatch.setattr(dynamic_program, "_hidden_before", counted)
    count = 300
    rng = random.Random(0)
    profile = tf_libra.BackwardProfile.from_arrays(
        [rng.randint(1, 4 * 10**5) for _ in range(count)],
        [rng.uniform(0, 1e-3) for _ in range(count)],
    )
    cost = tf_libra.ContentionModel(8, 1e-5, (1.0, 0.08), (2e9, 1.2e9, 0.4), (2.4e9, 1.3e9, 0.5))
    assert len(tf_libra.make_plan(profile, cost, "libra").groups) > 1
    assert 1 <= len(looked) < count / 10
