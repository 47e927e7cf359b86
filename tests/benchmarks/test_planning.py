import pytest

from benchmarks import planning


@pytest.mark.parametrize("exact", [False, True])
def test_measures_a_case(exact):
    result = planning.measure(planning.Case(tensors=20, max_groups=3, exact=exact), repeats=1)
    assert result.groups <= 3
    assert result.cpu_seconds > 0
    assert result.peak_mebibytes > 0


def test_profiles_have_the_ratio_they_are_asked_for():
    profile = planning.profile_of(50, 2.0)
    sent = float(planning.COST.overlapped_seconds(profile.bytes_before[-1], 1024))
    assert sent / float(profile.compute_seconds.sum()) == pytest.approx(2, rel=1e-3)


def test_threads_grow_to_the_number_asked_for():
    for counts in planning.GROWTH["|R|"]:
        assert len(planning.allowed(counts)) == counts
