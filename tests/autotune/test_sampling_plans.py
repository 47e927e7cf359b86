"""Sampling plans: valid for every model, varied in what a fit separates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.autotune import TensorSpec, measuring_plans, one_group_plan, random_plans
from tf_libra.autotune.sampling_plans import SAMPLED_GROUPS, SIZES_PER_THREADS
from tf_libra.specs.backward_profile import BackwardProfile

THREADS = (1, 2, 4)
sizes_of_models = st.lists(st.integers(0, 10**9), min_size=1, max_size=60)


def specs(sizes: list[int]) -> list[TensorSpec]:
    return [TensorSpec(f"t{i}", size, "float32") for i, size in enumerate(sizes)]


def profile(sizes: list[int]) -> BackwardProfile:
    return BackwardProfile.from_arrays(
        sizes, [1e-3] * len(sizes), [f"t{i}" for i in range(len(sizes))]
    )


@given(sizes_of_models)
def test_sampling_plans_cover_all_tensors(sizes: list[int]) -> None:
    plans = [
        one_group_plan(specs(sizes), 2, 4, "syneasgd"),
        *measuring_plans(specs(sizes), THREADS, 4),
        *random_plans(profile(sizes), THREADS, 4, 12),
    ]
    for plan in plans:
        assert plan.num_bytes == tuple(sizes)
        assert plan.tensor_names == tuple(spec.name for spec in specs(sizes))
        assert {group.num_threads for group in plan.groups} <= set(THREADS)


@given(sizes_of_models, st.integers(1, 20))
def test_random_plans_are_different_and_reproducible(sizes: list[int], count: int) -> None:
    plans = random_plans(profile(sizes), THREADS, 4, count)
    assert 1 <= len({plan.fingerprint for plan in plans}) == len(plans) <= count
    assert max(len(plan.groups) for plan in plans) <= min(SAMPLED_GROUPS[1], len(sizes))
    assert plans == random_plans(profile(sizes), THREADS, 4, count)


def test_every_thread_count_leads_as_often_as_any_other() -> None:
    plans = random_plans(profile([1000] * 100), THREADS, 4, 12)
    leading = [plan.groups[0].num_threads for plan in plans]
    assert {r: leading.count(r) for r in THREADS} == {1: 4, 2: 4, 4: 4}


@pytest.mark.parametrize("threads", [(1,), (2, 3), THREADS, (1, 2, 3, 4), (1, 2, 4, 8, 16, 32)])
def test_every_thread_count_is_measured_at_different_sizes(threads: tuple[int, ...]) -> None:
    plans = measuring_plans(specs([1000] * 100), threads, 4)
    sizes: dict[int, set[int]] = {r: set() for r in threads}
    for plan in plans:
        assert plan.after_backward
        assert plan.num_workers == 4
        for num_bytes, group in zip(plan.group_bytes, plan.groups, strict=True):
            sizes[group.num_threads].add(num_bytes)
    assert all(len(each) >= SIZES_PER_THREADS for each in sizes.values())
    assert all(max(each) >= 3 * min(each) for each in sizes.values())
    # No place in a step has one size only.
    assert len({plan.groups[0].stop for plan in plans}) == len(plans)


def test_few_tensors_need_few_measuring_plans() -> None:
    plans = measuring_plans(specs([1000]), THREADS, 4)
    assert len({plan.fingerprint for plan in plans}) == len(plans) <= 2
