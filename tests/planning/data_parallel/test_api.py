import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra import strategies


@settings(max_examples=num_examples(200), deadline=None)
@given(
    reference.profiles(max_tensors=8),
    reference.any_costs((1, 2, 4)),
    st.sampled_from(sorted(strategies.BY_NAME)),
)
def test_every_plan_covers_all_tensors_and_knows_its_time(profile, cost, name):
    plan = tf_libra.make_plan(profile, cost, name)
    assert plan.strategy == name
    assert plan.num_workers == cost.num_workers
    assert plan.tensor_names == profile.names
    assert plan.groups[-1].stop == len(profile.tensors)
    timeline = tf_libra.simulate(profile, plan, cost)
    assert plan.predicted_seconds == timeline.backward_seconds
    assert tf_libra.Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("strategy", ["fastest", 3, None, strategies.Libra])
def test_unknown_strategy_is_rejected(strategy):
    profile = tf_libra.BackwardProfile.from_arrays([1], [1.0])
    cost = tf_libra.ContentionModel(2, 1e-3, (1.0, 0.1), (1e9, 0, 0), (1e9, 0, 0))
    with pytest.raises(ValueError, match="strategy must be"):
        tf_libra.make_plan(profile, cost, strategy)


def test_argument_of_another_type_is_named():
    profile = tf_libra.BackwardProfile.from_arrays([1], [1.0])
    cost = tf_libra.ContentionModel(2, 1e-3, (1.0, 0.1), (1e9, 0, 0), (1e9, 0, 0))
    plan = tf_libra.make_plan(profile, cost, "wfbp")
    for other, message in (
        ({"profile": [1]}, "profile must be a BackwardProfile, got list"),
        ({"cost": 1e-3}, "cost must be a CostModel, got float"),
    ):
        arguments = {"profile": profile, "cost": cost} | other
        with pytest.raises(ValueError, match=message):
            tf_libra.make_plan(**arguments, strategy="wfbp")
        with pytest.raises(ValueError, match=message):
            tf_libra.simulate(plan=plan, **arguments)
    with pytest.raises(ValueError, match=r"plan.*Plan,"):
        tf_libra.simulate(profile, "wfbp", cost)
