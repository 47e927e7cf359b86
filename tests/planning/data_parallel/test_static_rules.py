import pytest

import tf_libra
from tf_libra import strategies

COST = tf_libra.ContentionModel(4, 1e-5, (1.0, 0.1), (1e9, 0, 0), (2e9, 0, 0))


def stops(profile, strategy):
    return [g.stop for g in tf_libra.make_plan(profile, COST, strategy).groups]


def profile_of(num_bytes, compute_seconds):
    return tf_libra.BackwardProfile.from_arrays(num_bytes, compute_seconds)


def test_syneasgd_is_one_group():
    assert stops(profile_of([1, 2, 3], [1, 1, 1]), strategies.SynEasgd()) == [3]


def test_wfbp_is_a_group_per_tensor():
    assert stops(profile_of([1, 2, 3], [1, 1, 1]), strategies.Wfbp()) == [1, 2, 3]


def test_horovod_fuses_what_a_cycle_produces():
    # Produced after 0.4, 0.8, 1.2, 2.0 (at the cycle's very end), 2.5 ms.
    profile = profile_of([1] * 5, [4e-4, 4e-4, 4e-4, 8e-4, 5e-4])
    assert stops(profile, strategies.HorovodFusion()) == [2, 4, 5]
    assert stops(profile, strategies.HorovodFusion(cycle_seconds=5e-3)) == [5]


@pytest.mark.parametrize(("buffer", "expected"), [(9, [1, 2, 3, 4]), (10, [2, 3, 4]), (35, [3, 4])])
def test_horovod_fuses_up_to_the_buffer(buffer, expected):
    profile = profile_of([4, 6, 25, 40], [1e-6] * 4)
    assert stops(profile, strategies.HorovodFusion(buffer_bytes=buffer)) == expected


@pytest.mark.parametrize("name", ["syneasgd", "wfbp", "horovod-fusion", "mg-wfbp", "asc-wfbp"])
def test_groups_have_the_strategy_s_threads(name):
    strategy = strategies.BY_NAME[name](num_threads=3)
    plan = tf_libra.make_plan(profile_of([10**6] * 6, [1e-3] * 6), COST, strategy)
    assert {g.num_threads for g in plan.groups} == {3}
