import xml.etree.ElementTree

import pytest

import tf_libra
from tf_libra.specs.plan import Plan, TensorGroup

COST = tf_libra.ContentionModel(2, 0.5, (1.0, 0.0), (1.0, 0, 0), (1.0, 0, 0))


@pytest.mark.parametrize("streams", [(0, 0, 0), (7, 0, 900), (2**31 - 1, 5, 6)])
def test_every_stream_has_a_row_whatever_its_number(streams, tmp_path):
    pytest.importorskip("matplotlib")
    from tf_libra.simulation.timeline_plot import plot_timeline

    profile = tf_libra.BackwardProfile.from_arrays([3, 4, 5], [1, 2, 3])
    groups = tuple(TensorGroup(i, i + 1, 1, stream) for i, stream in enumerate(streams))
    plan = Plan.for_profile(profile, groups, 2, "by hand")
    path = tmp_path / "timeline.svg"
    plot_timeline(plan, tf_libra.simulate(profile, plan, COST), str(path))
    assert xml.etree.ElementTree.parse(path).getroot().tag.endswith("svg")
    text = path.read_text()
    for stream in set(streams):
        assert (f">all-reduce, stream {stream}<" in text) == (len(set(streams)) > 1)
