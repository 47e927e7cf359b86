import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.buckets import DDP_BYTES, DDP_FIRST_BYTES, Launcher, buckets, ddp_groups
from tf_libra import BackwardProfile, Plan, TensorGroup

ITEM = 4


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    elements = draw(st.lists(st.integers(1, 50), min_size=1, max_size=12))
    profile = BackwardProfile.from_arrays([ITEM * n for n in elements], [0.0] * len(elements))
    cuts = draw(st.sets(st.integers(1, len(elements)), max_size=4)) - {len(elements)}
    edges = [0, *sorted(cuts), len(elements)]
    threads = st.sampled_from((128, 256, 4096))
    groups = tuple(
        TensorGroup(start, stop, draw(threads)) for start, stop in itertools.pairwise(edges)
    )
    return Plan.for_profile(profile, groups, 2, "test")


@given(plans())
def test_buckets_tile_the_buffer_in_the_plans_order(plan: Plan) -> None:
    found = buckets(plan, ITEM)
    assert [b.num_threads for b in found] == [g.num_threads for g in plan.groups]
    assert [b.tensors for b in found] == [(g.start, g.stop) for g in plan.groups]
    assert found[0].elements[0] == 0
    assert found[-1].elements[1] * ITEM == sum(plan.num_bytes)
    assert all(a.elements[1] == b.elements[0] for a, b in itertools.pairwise(found))
    for bucket, group in zip(found, plan.groups, strict=True):
        assert bucket.num_bytes == sum(plan.num_bytes[group.start : group.stop])
        assert bucket.num_bytes == ITEM * (bucket.elements[1] - bucket.elements[0])


def test_a_plan_that_cuts_tensors_is_rejected() -> None:
    profile = BackwardProfile.from_arrays([16], [0.0])
    groups = (TensorGroup(0, 1, 128, stop_byte=8), TensorGroup(0, 1, 128, start_byte=8))
    with pytest.raises(ValueError, match=r"groups\[0\]"):
        buckets(Plan.for_profile(profile, groups, 2, "test"), ITEM)


def test_a_part_of_an_element_is_rejected() -> None:
    profile = BackwardProfile.from_arrays([8, 6], [0.0, 0.0], ["a", "b"])
    plan = Plan.for_profile(profile, (TensorGroup(0, 2, 128),), 2, "test")
    with pytest.raises(ValueError, match=r"num_bytes.*'b'.*4"):
        buckets(plan, ITEM)


@given(plans(), st.randoms(use_true_random=False), st.booleans())
def test_buckets_go_in_order_as_soon_as_they_and_those_before_are_whole(
    plan: Plan, random: object, after_backward: bool
) -> None:
    order = list(range(len(plan.num_bytes)))
    random.shuffle(order)
    launcher = Launcher(buckets(plan, ITEM), after_backward=after_backward)
    for _ in range(2):
        launched: list[int] = []
        for done in range(len(order)):
            launched += launcher.produced(order[done])
            there = set(order[: done + 1])
            whole = [set(range(g.start, g.stop)) <= there for g in plan.groups]
            most = whole.index(False) if False in whole else len(whole)
            assert launched == list(range(most if not after_backward or all(whole) else 0))
            assert launcher.is_complete == all(whole)
        launcher.restart()


def test_a_gradient_produced_twice_is_reported() -> None:
    profile = BackwardProfile.from_arrays([4, 4], [0.0, 0.0])
    plan = Plan.for_profile(profile, (TensorGroup(0, 1, 128), TensorGroup(1, 2, 128)), 2, "test")
    launcher = Launcher(buckets(plan, ITEM))
    assert launcher.produced(0) == (0,)
    with pytest.raises(ValueError, match="tensor 0"):
        launcher.produced(0)


@given(st.lists(st.integers(1, 2 * DDP_BYTES), min_size=1, max_size=30))
def test_ddp_closes_a_bucket_with_the_tensor_that_fills_it(sizes: list[int]) -> None:
    groups = ddp_groups(sizes, 1)
    profile = BackwardProfile.from_arrays(sizes, [0.0] * len(sizes))
    Plan.for_profile(profile, groups, 2, "ddp")  # covers all tensors
    for index, group in enumerate(groups):
        limit = DDP_BYTES if index else DDP_FIRST_BYTES
        assert sum(sizes[group.start : group.stop - 1]) < limit
        if group.stop < len(sizes):
            assert sum(sizes[group.start : group.stop]) >= limit


def test_buckets_keep_their_threads_apart() -> None:
    profile = BackwardProfile.from_arrays([4, 4], [0.0, 0.0])
    plan = Plan.for_profile(profile, (TensorGroup(0, 1, 128), TensorGroup(1, 2, 4096)), 2, "test")
    first, second = buckets(plan, ITEM)
    assert dataclasses.astuple(first)[2:] == (4, 128)
    assert dataclasses.astuple(second)[2:] == (4, 4096)
