"""Effective bytes of groups."""

from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.effective_bytes import effective_group_bytes
from tf_libra.specs.plan import Plan, TensorGroup


def test_effective_bytes_of_a_plan_are_found_by_name_and_part() -> None:
    profile = BackwardProfile.from_arrays(
        [100, 1000], [0, 0], ["a", "b"], ["float32"] * 2, density=[1, 0.1]
    )
    groups = (TensorGroup(0, 2, 1, stop_byte=400), TensorGroup(1, 2, 1, start_byte=400))
    plan = Plan.for_profile(profile, groups, 2, "by hand")
    assert plan.group_bytes == (500, 600)
    assert effective_group_bytes(profile, plan) == (140, 60)
    swapped = BackwardProfile(profile.tensors[::-1])
    one_by_one = (TensorGroup(0, 1, 1), TensorGroup(1, 2, 1))
    assert effective_group_bytes(profile, Plan.for_profile(swapped, one_by_one, 2, "")) == (
        100,
        100,
    )
