import numpy as np
import pytest

import tf_libra
from benchmarks import pipeline_planning
from benchmarks.markdown import fill
from benchmarks.spp import __main__ as spp
from benchmarks.spp import parameters, studies


@pytest.mark.parametrize(
    ("name", "millions", "num_layers"),
    [
        ("VGG19", 144, 19),
        ("ResNet152", 60, 52),
        ("Inception-V3", 24, 17),
        ("Transformer", 55, 14),
        ("BERT-large", 340, 27),
        ("XLNet-large", 550, 27),
        ("BERT-48", 640, 51),
    ],
)
def test_models_have_the_parameters_of_table_2(name, millions, num_layers):
    layers = parameters.model(name, 2, 1e12)
    assert layers.parameter_bytes.sum() / 4e6 == pytest.approx(millions, rel=0.02)
    assert len(layers.layers) == num_layers
    # Twice the samples take twice the time and bytes.
    double = parameters.model(name, 4, 1e12)
    np.testing.assert_allclose(double.forward_seconds, 2 * layers.forward_seconds)
    np.testing.assert_allclose(double.cut_bytes, 2 * layers.cut_bytes)


def test_published_operations():
    """Multiplications and additions per image: 19.6 G, 11.3 G and 5.7 G of each (their papers)."""
    for build, billions in (
        (parameters.vgg19, 39.3),
        (parameters.resnet152, 22.6),
        (parameters.inception_v3, 11.4),
    ):
        assert build(1, 1e9).forward_seconds.sum() == pytest.approx(billions, rel=0.03)


def test_servers_are_those_of_section_5_b():
    cluster = parameters.servers()
    assert cluster.num_devices == 32
    gigabits = cluster.rates * 8e-9
    server = np.array(cluster.nodes)
    same = (server[:, None] == server) & ~np.eye(32, dtype=bool)
    slow = same & (server < 3)
    assert gigabits[slow].min() >= 96 and gigabits[slow].max() <= 128
    fast = same & (server >= 3)
    assert gigabits[fast].min() >= 160 and gigabits[fast].max() <= 200
    between = server[:, None] != server
    assert gigabits[between].min() >= 32 and gigabits[between].max() <= 40


def test_nodes_of_hetpipe_take_turns():
    """Four nodes, four microbatches: each node has one, as a whole."""
    layers, cluster = parameters.bert(2), parameters.testbed("1080Ti x 8")
    plan = studies.iteration("HetPipe", layers, cluster, 4)
    assert plan.num_microbatches == 1
    total = float(layers.forward_seconds.sum() + layers.backward_seconds.sum())
    assert plan.predicted_seconds >= total
    assert studies.iteration("HetPipe", layers, cluster, 3).num_microbatches == 3


def test_rows_are_predictions():
    (row,) = studies.figure_6([2])
    layers, cluster = parameters.bert(), parameters.servers()
    plan = tf_libra.make_pipeline_plan(layers, cluster, "spp", num_microbatches=2)
    assert row.seconds["SPP"] == plan.predicted_seconds
    assert row.seconds.keys() == studies.STRATEGIES.keys()
    assert min(row.seconds.values()) > 0


def test_printed_speed_ups_follow_from_the_paper_s_seconds():
    for key, (own, *seconds) in studies.TABLE_III.items():
        for other, percent in zip(seconds, studies.TABLE_III_PERCENT[key], strict=True):
            if other is None:
                assert percent is None
            else:
                assert 100 * (other / own - 1) == pytest.approx(percent, abs=0.2)


def test_tables_are_filled_into_marks(monkeypatch, tmp_path):
    quick = [studies.Row("one", dict.fromkeys(studies.STRATEGIES, 1.0), "1x1")]
    for name in ("figure_6", "figure_7", "figure_8", "figure_9", "figure_10", "sensitivity"):
        monkeypatch.setattr(studies, name, lambda: quick)
    monkeypatch.setattr(studies, "figure_11", lambda: [studies.StagesRow(1, 1.0, 2.0)])
    path = tmp_path / "page.md"
    blocks = spp.blocks(path)
    text = "".join(f"<!-- begin {name} -->\n<!-- end {name} -->\n" for name in blocks)
    path.write_text(text)
    spp.run(path)
    assert fill(path.read_text(), blocks) == path.read_text()
    assert "VGG19, 1080Ti x 8" in path.read_text()
    assert {file.name for file in (tmp_path / "images").iterdir()} == {
        "spp_models.svg",
        "spp_studies.svg",
    }


def test_planning_is_measured():
    result = pipeline_planning.measure(8, 4, 2, 1)
    assert (result.layers, result.devices, result.microbatches) == (8, 4, 2)
    text = pipeline_planning.markdown({"layers": [result]})
    assert text.splitlines()[2].startswith("| layers | 8 | 4 | 2 |")


def test_coarser_layers_are_the_same_model():
    layers = parameters.bert(2)  # five layers
    half = studies._coarser(layers)
    assert half.names == layers.names[::2]
    np.testing.assert_allclose(half.cut_bytes, layers.cut_bytes[[1, 3]])
    for field in ("forward_seconds", "backward_seconds", "parameter_bytes"):
        assert getattr(half, field).sum() == pytest.approx(getattr(layers, field).sum())
        np.testing.assert_allclose(getattr(half, field)[0], getattr(layers, field)[:2].sum())
