import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra import strategies

COST = tf_libra.ContentionModel(4, 1e-5, (1.0, 0.1), (1e9, 0, 0), (2e9, 0, 0))


@pytest.mark.parametrize(
    ("buffer", "expected"), [(1, [1, 2, 3, 4]), (11, [1, 2, 4]), (12, [1, 4]), (99, [4])]
)
def test_tensors_are_fused_in_forward_order_below_the_buffer(buffer, expected):
    # In forward order 5, 5, 1 and 40 bytes.
    profile = tf_libra.BackwardProfile.from_arrays([40, 1, 5, 5], [1e-6] * 4)
    plan = tf_libra.make_plan(profile, COST, strategies.Dear(buffer_bytes=buffer, num_threads=2))
    assert [group.stop for group in plan.groups] == expected
    assert plan.gathers == plan.groups[::-1]
    assert {group.num_threads for group in plan.groups} == {2}


def test_tensors_of_a_layer_stay_together():
    names = ["top/bias", "top/kernel", "gamma", "beta", "dense/1/bias", "dense/0/kernel"]
    profile = tf_libra.BackwardProfile.from_arrays([1, 8, 1, 1, 1, 8], [1e-6] * 6, names)
    plan = tf_libra.make_plan(profile, COST, strategies.Dear(buffer_bytes=5))
    assert [group.stop for group in plan.groups] == [2, 5, 6]


@settings(max_examples=num_examples(60), deadline=None)
@given(reference.profiles(max_tensors=8), st.sampled_from([0, 1, 1000, 10**6]))
def test_groups_are_the_longest_that_stay_below_the_buffer(profile, buffer):
    plan = tf_libra.make_plan(profile, COST, strategies.Dear(buffer_bytes=buffer))
    sizes = plan.gather_bytes
    for index, gather in enumerate(plan.gathers):
        several = sum(size > 0 for size in plan.num_bytes[gather.start : gather.stop]) > 1
        assert not several or sizes[index] < buffer
        if index + 1 < len(plan.gathers):
            following = plan.num_bytes[plan.gathers[index + 1].stop - 1]
            assert sizes[index] + following >= buffer


def test_plans_with_gathers_take_no_part_in_comparisons_of_all_reduces():
    assert "dear" not in strategies.Auto().others()
    profile = tf_libra.BackwardProfile.from_arrays([10**6] * 4, [1e-3] * 4)
    assert not tf_libra.make_plan(profile, COST, "auto").gathers
