"""Device counts that a limit on amplification allows on each edge, compared with the definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tf_libra.model_parallel.planning.burst.costs import Costs, amplification

COUNTS = [1, 2, 4]
seconds = st.one_of(st.just(0.0), st.floats(1e-3, 10.0))


@st.composite
def chains(draw):
    def table(*shape):
        size = int(np.prod(shape))
        return np.array(draw(st.lists(seconds, min_size=size, max_size=size))).reshape(shape)

    layers = draw(st.integers(2, 3))
    return tf_libra.ScalingProfile.chain(
        COUNTS, table(layers, 3), table(layers, 3), table(layers - 1, 3, 3)
    )


@settings(max_examples=num_examples(60), deadline=None)
@given(chains(), st.floats(1.0, 4.0))
def test_a_step_is_forbidden_where_the_next_layer_is_amplified_beyond_the_limit(scaling, limit):
    costs = Costs(scaling, limit)
    for index, (source, target) in enumerate(scaling.edges):
        assert target == source + 1
        for g in range(3):
            for h in range(3):
                coming = scaling.transition_seconds[index, g, h]
                own = scaling.compute_seconds[target, h], scaling.synchronize_seconds[target, h]
                alone = scaling.compute_seconds[target, 0]
                found = float(amplification(np.array(COUNTS[h]), coming, own, alone))
                step = costs.step(index, moved=False)[g, h]
                if found > limit * (1 + 1e-9):
                    assert step == np.inf
                elif found < limit * (1 - 1e-9):
                    assert step == pytest.approx(coming + sum(own))


def test_amplification_of_layers_that_cost_nothing():
    none, some = np.array(0.0), np.array(1.0)
    assert amplification(np.array(4), none, (none, none), none) == 1.0
    assert amplification(np.array(4), some, (none, none), none) == np.inf
    assert amplification(np.array(4), some, (some, some), some) == 12.0


def test_without_a_limit_everything_is_allowed():
    scaling = tf_libra.ScalingProfile.chain(
        [1, 2], [[1.0, 9.0]] * 2, [[0.0, 9.0]] * 2, [[[0, 9.0]] * 2]
    )
    costs = Costs(scaling, np.inf)
    assert np.isfinite(costs.step(0, moved=False)).all()
    np.testing.assert_allclose(costs.start(0), [1.0, 18.0])
    assert (costs.budget(0) == np.inf).all()
