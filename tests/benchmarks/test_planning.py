import pytest

from benchmarks import planning


@pytest.mark.parametrize("exact", [False, True])
def test_measures_a_case(exact):
    result = planning.measure(planning.Case(tensors=20, max_groups=3, exact=exact), repeats=1)
    assert result.groups <= 3
    assert result.cpu_seconds > 0
    assert (result.peak_mebibytes is None) == exact


@pytest.mark.parametrize("network", [None, "vgg16"])
def test_profiles_have_the_requested_ratio(network):
    profile = planning.profile_of(planning.Case(network=network, tensors=50, ratio=2.0))
    sent = float(planning.COST.overlapped_seconds(profile.bytes_before[-1], 1024))
    assert sent / float(profile.compute_seconds.sum()) == pytest.approx(2, rel=1e-9)
    assert not profile.has_updates
    case = planning.Case(network=network, tensors=50, updates=planning.UPDATES)
    profile = planning.profile_of(case)
    updates = sum(tensor.update_seconds for tensor in profile.tensors)
    assert updates == pytest.approx(0.3 * float(profile.compute_seconds.sum()))


@pytest.mark.parametrize("exact", [False, True])
def test_tables_have_a_row_per_case(exact):
    result = planning.measure(planning.Case(tensors=5, max_groups=2), repeats=1)
    updated = [
        planning.measure(planning.Case(tensors=7, updates=0.3, strategy=name), repeats=1)
        for name in planning.STRATEGIES
    ]
    tables = {"models": [result] * 2, "updates": updated * 3} | {
        letter: [result] * 4 for letter in planning.GROWTH
    }
    text = planning.markdown(tables | ({"exact": [result] * 2} if exact else {}))
    assert text.count("| random | 5 |") == 2
    assert text.count("| random | 7 |") == 3
    assert all(f"`{name}`: CPU seconds" in text for name in planning.STRATEGIES)
    assert ("0.000 %" in text) == exact


def test_threads_grow_to_the_requested_number():
    for counts in planning.GROWTH["|R|"]:
        assert len(planning.allowed(counts)) == counts
