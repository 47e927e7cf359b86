"""The group that loses most time."""

import pytest

import tf_libra
from tf_libra.planning.group_costs import GroupCost, bottleneck, losses

PROFILE = tf_libra.BackwardProfile.from_arrays([8_000_000, 8_000_000, 1000], [5e-3, 9e-3, 1e-3])
COST = tf_libra.ContentionModel(8, 1e-5, (1.0, 0.08), (2e9, 1.2e9, 0.4), (2.4e9, 1.3e9, 0.5))


def test_contention_counts_as_much_as_what_is_waited_for() -> None:
    assert bottleneck((GroupCost(2e-3, 0.0), GroupCost(0.0, 1e-3))) == 0
    assert bottleneck((GroupCost(2e-3, 0.0), GroupCost(1e-3, 1.5e-3))) == 1
    assert bottleneck((GroupCost(1e-3, 0.0), GroupCost(0.0, 1e-3))) == 0


def test_losses_and_computation_are_all_of_backward() -> None:
    plan = tf_libra.make_plan(PROFILE, COST, tf_libra.strategies.Wfbp(num_threads=4))
    timeline = tf_libra.simulate(PROFILE, plan, COST)
    found = losses(plan, timeline, COST)
    assert sum(one.seconds for one in found) + PROFILE.compute_after[0] == pytest.approx(
        timeline.backward_seconds
    )
