"""DeepPool's evaluation on small clusters, and what it is computed from."""

import shutil
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

import tf_libra
from benchmarks import burst_planning
from benchmarks.deeppool import evaluation, models
from benchmarks.deeppool.__main__ import run

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "deeppool_paper.md"


def test_networks_are_those_of_table_1():
    vgg, inception = evaluation.workloads(evaluation.Setting())
    assert vgg.layers == vgg.paper_layers
    assert inception.layers == inception.paper_layers
    assert inception.parameters == pytest.approx(inception.paper_parameters, rel=0.01)


def test_published_times_are_where_they_belong():
    scaling = models.profile("vgg16", (1, 2, 4), 64)
    assert scaling.names[:4] == ("conv1", "conv2", "pool1", "conv3")
    # The first convolution with its ReLU, and the first dense layer with flatten and ReLU.
    assert scaling.compute_seconds[0, 0] == pytest.approx((2157 + 4936) * 1e-6)
    assert scaling.compute_seconds[-3, 0] == pytest.approx((17 + 351 + 1579) * 1e-6)
    inception = models.profile("inception_v3", (1,), 64)
    joins = {target for _, target in inception.edges}
    sources = [source for source, _ in inception.edges]
    assert inception.names[inception.order[-1]] == "dense"
    assert len(joins) == inception.num_layers - 1
    # Blocks branch at the last layer of the stem and at every concatenation but the last.
    branching = {source for source in sources if sources.count(source) > 2}
    concatenations = {i for i, name in enumerate(inception.names) if name.endswith("concat")}
    assert branching - {6} == concatenations - {max(concatenations)}


def test_transitions_move_what_is_not_there():
    scaling = models.profile("vgg16", (1, 2, 4), 8, models.Parameters(latency_seconds=0.0))
    per_sample = 2 * 4 * 64 * 224 * 224 / 266e9
    found = scaling.transition_seconds[0] / per_sample
    # 8, 4 or 2 samples per GPU before and after.
    assert found == pytest.approx(np.array([[0, 4, 6], [4, 0, 2], [6, 2, 0]]))
    assert scaling.move_seconds is not None
    moved = scaling.move_seconds[0] / per_sample
    assert moved == pytest.approx(np.array([[8, 8, 8], [8, 4, 4], [8, 4, 2]]))


def test_beyond_the_largest_batch_time_grows_with_the_samples():
    layer = models.Layer("x", {1: 1.0, 2: 1.5, 4: 2.0}, 0, 1)
    assert layer.seconds_at(16) == 8.0
    assert layer.utilization(1) == 0.5
    assert layer.utilization(16) == 1.0
    with pytest.raises(ValueError, match=r"batch.*\[1, 2, 4\],.*3"):
        layer.seconds_at(3)


def test_each_mechanism_is_one_row():
    rows = evaluation.mechanisms(evaluation.Setting())
    foreground = {row.scenario: row.foreground for row in rows}
    assert foreground["naive collocation"] == foreground["+ stream priorities"]
    assert foreground["naive collocation"] < foreground["+ launch pacing"]
    assert foreground["+ split graphs"] < foreground["+ slowdown feedback"]
    assert max(foreground.values()) == foreground["foreground alone"]


def test_the_document_has_all_blocks(tmp_path):
    path = tmp_path / "deeppool_paper.md"
    shutil.copy(DOCUMENT, path)
    run(path, scales=(2,), sensitive=("vgg16",))
    text = path.read_text()
    for block in ("claims", "scale", "throughput", "mechanisms", "sensitivity"):
        assert f"<!-- begin {block} -->\n|" in text
    pictures = list((tmp_path / "images").glob("burst_*.svg"))
    assert len(pictures) == 5
    for picture in pictures:
        xml.etree.ElementTree.parse(picture)
        assert f"images/{picture.name}" in text


def test_the_document_s_figures_are_those_of_the_code():
    rows = evaluation.scenarios(evaluation.Setting(), ["vgg16"])
    text = DOCUMENT.read_text()
    for row in rows:
        assert f"| {row.scenario} |" in text
        assert f" | {row.foreground:.0f} | {row.background:.0f} | {row.total:.0f} |" in text


def test_search_times_are_measured_for_table_3_s_networks():
    counts = (1, 2, 4, 8)
    assert burst_planning.wide_resnet(counts, blocks=False).num_layers == 105
    blocks = burst_planning.wide_resnet(counts, blocks=True)
    plan = tf_libra.make_burst_plan(blocks, max_amplification=2.0)
    assert max(plan.amplification) <= 2.0 * (1 + 1e-12)
    results = [burst_planning.measure(*p, repeats=1) for p in burst_planning.profiles(8)[:2]]
    assert all(result.cpu_seconds > 0 for result in results)
    text = burst_planning.markdown(results)
    assert "| VGG-16 | chain | 21 | 8 |" in text
    assert "| WideResNet-101-2 | chain | 105 | 8 |" in text
