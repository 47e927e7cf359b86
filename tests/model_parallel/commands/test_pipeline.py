import json
import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

import tf_libra
from tf_libra import strategies
from tf_libra.cli import main

LAYERS = tf_libra.LayerGraph.chain(
    [1e-3] * 6, [2e-3] * 6, [4e6] * 6, [1e5] * 5, [f"block_{i}" for i in range(6)]
)
CLUSTER = tf_libra.Cluster.from_bandwidth(1e9 * (1 - np.eye(4)))
NAMES = ["spp", "gpipe", "pipedream", "hetpipe", "data-parallel"]


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "layers.json").write_text(LAYERS.to_json())
    (tmp_path / "cluster.json").write_text(CLUSTER.to_json())
    return [f"--layers={tmp_path}/layers.json", f"--cluster={tmp_path}/cluster.json"]


def test_plan_writes_what_make_pipeline_plan_makes(inputs, tmp_path, capsys):
    out, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    arguments = ["--num_microbatches=8", f"--out={out}", f"--plot={picture}"]
    assert main(["pipeline", "plan", *inputs, *arguments]) == 0
    plan = tf_libra.PipelinePlan.from_json(out.read_text())
    assert plan == tf_libra.make_pipeline_plan(LAYERS, CLUSTER, "spp", num_microbatches=8)
    xml.etree.ElementTree.parse(picture)
    assert "all reduce" in picture.read_text()
    arguments = ["--strategy=gpipe", "--num_microbatches=2", "--num_stages=3"]
    assert main(["pipeline", "plan", *inputs, *arguments]) == 0
    printed = tf_libra.PipelinePlan.from_json(capsys.readouterr().out)
    gpipe = strategies.GPipe(num_stages=3)
    assert printed == tf_libra.make_pipeline_plan(LAYERS, CLUSTER, gpipe, num_microbatches=2)


def test_simulate_a_strategy_over_microbatches(inputs, tmp_path, capsys):
    picture = tmp_path / "timeline.svg"
    arguments = ["--strategy=spp", "--num_microbatches=1,4,16", "--json", f"--plot={picture}"]
    assert main(["pipeline", "simulate", *inputs, *arguments]) == 0
    for count, row in zip((1, 4, 16), json.loads(capsys.readouterr().out), strict=True):
        plan = tf_libra.make_pipeline_plan(LAYERS, CLUSTER, "spp", num_microbatches=count)
        assert row["plan"] == f"spp, {count} microbatches"
        assert row["iteration_seconds"] == plan.predicted_seconds
        assert row["layers"] == [s.stop - s.start for s in plan.stages]
        busy = count * 6 * 3e-3 / (4 * plan.predicted_seconds)
        assert row["idle_share"] == pytest.approx(1 - busy)
    assert picture.read_text().count("microbatches") >= 3


def test_simulate_a_plan_file(inputs, tmp_path, capsys):
    plan = tf_libra.make_pipeline_plan(LAYERS, CLUSTER, "hetpipe", num_microbatches=5)
    (tmp_path / "plan.json").write_text(plan.to_json())
    arguments = [*inputs, f"--plan={tmp_path}/plan.json"]
    assert main(["pipeline", "simulate", *arguments, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["iteration_seconds"] == plan.predicted_seconds
    assert main(["pipeline", "simulate", *arguments, "--num_microbatches=2"]) == 2
    assert "must be those of the plan" in capsys.readouterr().err


def test_compare_has_every_strategy(inputs, tmp_path, capsys):
    picture = tmp_path / "all.svg"
    arguments = ["--num_microbatches=4", f"--plot={picture}"]
    assert main(["pipeline", "compare", *inputs, *arguments]) == 0
    table = capsys.readouterr().out
    assert all(name in table and name in picture.read_text() for name in NAMES)
    assert main(["pipeline", "compare", *inputs, *arguments, "--json"]) == 0
    for row in json.loads(capsys.readouterr().out):
        plan = tf_libra.make_pipeline_plan(LAYERS, CLUSTER, row["plan"], num_microbatches=4)
        assert row["iteration_seconds"] == plan.predicted_seconds


def test_compare_says_what_cannot_be_planned(inputs, tmp_path, capsys):
    """A row of devices has no all-reduce over all devices, but a pipeline."""
    rates = 1e9 * (np.eye(4, k=1) + np.eye(4, k=-1))
    (tmp_path / "cluster.json").write_text(tf_libra.Cluster.from_bandwidth(rates).to_json())
    assert main(["pipeline", "compare", *inputs, "--num_microbatches=4", "--json"]) == 0
    rows = {row["plan"]: row for row in json.loads(capsys.readouterr().out)}
    assert "bytes_per_second" in rows["data-parallel"]["problem"]
    assert rows["spp"]["iteration_seconds"] > 0
    assert main(["pipeline", "compare", *inputs, "--num_microbatches=4"]) == 0
    (tmp_path / "cluster.json").write_text(
        tf_libra.Cluster.from_bandwidth(np.zeros((4, 4))).to_json()
    )
    assert main(["pipeline", "compare", *inputs, "--num_microbatches=4"]) == 2


def test_seconds_that_are_too_many_for_all_plans_but_one(inputs, tmp_path, capsys):
    """Infinite times of other strategies do not break the JSON output."""
    layers = tf_libra.LayerGraph.chain([1.7e308, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0])
    (tmp_path / "layers.json").write_text(layers.to_json())
    assert main(["pipeline", "compare", *inputs, "--num_microbatches=4", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    shares = {row["plan"]: row.get("idle_share", row.get("problem")) for row in rows}
    assert shares["data-parallel"] == pytest.approx(0, abs=1e-9)
    assert "finite number" in shares["gpipe"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["plan"], 2, "num_microbatches must be given"),
        (["plan", "--num_microbatches=0"], 2, "num_microbatches must be from 1"),
        (["plan", "--num_microbatches=x"], 2, "num_microbatches"),
        (["plan", "--strategy=dapple", "--num_microbatches=1"], 2, "strategy must be one of"),
        (
            ["plan", "--strategy=hetpipe", "--num_stages=2", "--num_microbatches=1"],
            2,
            "num_stages is not an argument of hetpipe",
        ),
        (["plan", "--num_stages=5", "--num_microbatches=1"], 2, "number of devices, 4, got 5"),
        (["simulate"], 2, "exactly one of plan and strategy"),
        (["simulate", "--plan=x", "--num_stages=2"], 2, "num_stages is an argument of strategies"),
        (["simulate", "--strategy=spp", "--num_microbatches=1,x"], 2, "must be integers"),
        (["compare"], 2, "num_microbatches must be given"),
        (["compare", "--num_microbatches=0"], 2, "num_microbatches must be from 1"),
        (["compare", "--num_microbatches=1", "--num_stages=5"], 2, "devices, 4, got 5"),
        (["compare", "more", "--num_microbatches=1"], 2, "only flags are allowed"),
        (["compare", "--speed=1"], 2, "speed"),
        (["draw"], 2, "no command 'draw'"),
    ],
)
def test_bad_input_is_named(inputs, capsys, arguments, status, message):
    assert main(["pipeline", arguments[0], *inputs, *arguments[1:]]) == status
    assert message in capsys.readouterr().err


def test_files_are_named(inputs, tmp_path, capsys):
    assert main(["pipeline", "plan", inputs[0], "--num_microbatches=1"]) == 2
    assert "cluster must be given: --cluster FILE.json" in capsys.readouterr().err
    (tmp_path / "layers.json").write_text("{")
    assert main(["pipeline", "plan", *inputs, "--num_microbatches=1"]) == 2
    assert f"{tmp_path}/layers.json: tf-libra layers is not valid JSON" in capsys.readouterr().err


def test_help(capsys):
    assert main(["pipeline"]) == 2
    assert main(["pipeline", "--help"]) == 0
    assert main(["pipeline", "plan", "--help"]) == 0
    assert "--num_microbatches" in capsys.readouterr().out.replace("--[no]", "--")


def test_it_needs_neither_tensorflow_nor_horovod(inputs):
    code = (
        "import sys; sys.modules['tensorflow'] = sys.modules['horovod'] = None\n"
        "from tf_libra.cli import main\n"
        f"sys.exit(main(['pipeline', 'compare', *{inputs!r}, '--num_microbatches=2']))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
