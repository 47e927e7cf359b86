import itertools

from hypothesis import given
from hypothesis import strategies as st

from tf_libra.autotune.search.space import Space
from tf_libra.planning.data_parallel.aiacc import CommConfig

axes = st.sets(st.integers(1, 1000), min_size=1, max_size=6).map(lambda s: tuple(sorted(s)))
spaces = st.builds(Space, axes, axes, axes)


@given(spaces)
def test_indices_and_settings_are_inverse(space: Space) -> None:
    all_indices = space.coarse_to_fine()
    assert sorted(all_indices) == sorted(itertools.product(*(range(len(a)) for a in space.axes)))
    assert len(all_indices) == space.size
    for indices in all_indices:
        assert space.indices_of(space.setting_at(indices)) == indices


@given(spaces)
def test_corners_come_first(space: Space) -> None:
    corners = set(itertools.product(*({0, len(axis) - 1} for axis in space.axes)))
    assert set(space.coarse_to_fine()[: len(corners)]) == corners


@given(spaces, st.builds(CommConfig, *[st.integers(1, 2000)] * 3))
def test_the_nearest_is_nearest_by_ratio_on_every_axis(space: Space, wanted: CommConfig) -> None:
    found = space.nearest(wanted)
    for axis, of_found, of_wanted in zip(
        space.axes,
        (found.unit_bytes, found.num_streams, found.num_threads),
        (wanted.unit_bytes, wanted.num_streams, wanted.num_threads),
        strict=True,
    ):
        ratios = [max(a / of_wanted, of_wanted / a) for a in axis]
        assert max(of_found / of_wanted, of_wanted / of_found) == min(ratios)
