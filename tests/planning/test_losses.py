"""What groups cost, against the definition: the step beside one without contention."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tf_libra
from tests.planning.data_parallel import reference
from tf_libra.planning.losses import Loss, bottleneck, losses


@given(
    reference.lawful_costs((1, 2, 4)),
    st.lists(st.integers(1, 10**7), min_size=1, max_size=6),
    st.sampled_from(["libra", "wfbp", "mg-wfbp", "syneasgd"]),
)
def test_all_of_them_are_what_the_step_takes_longer_than_its_computation(cost, sizes, strategy):
    if cost.num_workers < 2:
        cost = cost.with_workers(2)
    seconds = [1e-3 * (1 + i % 3) for i in range(len(sizes))]
    profile = tf_libra.BackwardProfile.from_arrays(sizes, seconds)
    plan = tf_libra.make_plan(profile, cost, strategy)
    timeline = tf_libra.simulate(profile, plan, cost)
    found = losses(plan, timeline, cost)
    assert len(found) == len(plan.groups)
    assert all(one.slowed_seconds >= 0 and one.residual_seconds >= 0 for one in found)
    assert sum(one.seconds for one in found) == pytest.approx(
        timeline.backward_seconds - sum(seconds), rel=1e-6, abs=1e-9
    )


def test_the_bottleneck_is_the_first_of_those_that_lose_most():
    found = (Loss(1.0, 0.0), Loss(1.0, 2.0), Loss(3.0, 0.0))
    assert found[1].seconds == 3.0
    assert bottleneck(found) == 1
