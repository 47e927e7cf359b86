import dataclasses
import json
import re
import subprocess
import sys
import xml.etree.ElementTree
from importlib import metadata

import pytest

import tf_libra
from tests.cli.conftest import COST, PROFILE
from tf_libra import strategies
from tf_libra.cli import main
from tf_libra.cost_model.fit_quality import Evidence, encode_cost_model
from tf_libra.internal import formatting
from tf_libra.planning.family_comparison import FamilyComparison, FamilyRow


def test_plan_writes_what_make_plan_makes(inputs, tmp_path):
    out = tmp_path / "plan.json"
    arguments = ["--strategy=libra", "--threads=1,2", "--max_groups=2", f"--out={out}"]
    assert main(["plan", *inputs, *arguments]) == 0
    strategy = tf_libra.strategies.Libra(threads=(1, 2), max_groups=2)
    assert tf_libra.Plan.from_json(out.read_text()) == tf_libra.make_plan(PROFILE, COST, strategy)


def test_plan_is_printed_for_another_number_of_workers(inputs, capsys):
    assert main(["plan", *inputs, "--strategy=wfbp", "--num_threads=3", "--workers=4"]) == 0
    plan = tf_libra.Plan.from_json(capsys.readouterr().out)
    assert plan.num_workers == 4
    assert {g.num_threads for g in plan.groups} == {3}


def test_exact_is_a_flag(inputs, capsys):
    assert main(["plan", *inputs, "--strategy=libra", "--exact"]) == 0
    plan = tf_libra.Plan.from_json(capsys.readouterr().out)
    exact = tf_libra.make_plan(PROFILE, COST, tf_libra.strategies.Libra(exact=True))
    assert plan == exact


def test_simulate_a_strategy_over_workers(inputs, capsys):
    arguments = ["--strategy=mg-wfbp", "--workers=8,16,2048", "--json"]
    assert main(["simulate", *inputs, *arguments]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["workers"] for row in rows] == [8, 16, 2048]
    for row in rows:
        plan = tf_libra.make_plan(PROFILE, COST.with_workers(row["workers"]), "mg-wfbp")
        assert row["backward_seconds"] == plan.predicted_seconds


def test_simulate_a_plan_file(inputs, tmp_path, capsys):
    plan = tf_libra.make_plan(PROFILE, COST, "wfbp")
    (tmp_path / "plan.json").write_text(plan.to_json())
    arguments = [f"--plan={tmp_path}/plan.json", "--workers=64"]
    assert main(["simulate", *inputs, *arguments, "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    timeline = tf_libra.simulate(PROFILE, plan, COST.with_workers(64))
    assert row["backward_seconds"] == timeline.backward_seconds
    assert main(["simulate", *inputs, *arguments]) == 0
    assert formatting.time(timeline.backward_seconds) in capsys.readouterr().out


def test_compare_has_every_strategy(inputs, capsys):
    arguments = ["--num_threads=2", "--threads=1,2,4", "--exact", "--json"]
    assert main(["compare", *inputs, *arguments]) == 0
    seconds = {
        row["strategy"]: row["backward_seconds"] for row in json.loads(capsys.readouterr().out)
    }
    assert seconds.keys() == {*tf_libra.strategies.BY_NAME, "mg-cf (ideal)", "libra, exact"} - {
        "auto"
    }
    assert seconds["libra, exact"] <= min(seconds["libra"], seconds["libra-m"], seconds["wfbp"])


def test_gathers_are_planned_and_compared(inputs, tmp_path, capsys):
    known = dataclasses.replace(PROFILE, rest_seconds=0.01)
    (tmp_path / "profile.json").write_text(known.to_json())
    files = ["--out=" + str(tmp_path / "plan.json"), "--plot=" + str(tmp_path / "plan.svg")]
    assert main(["plan", *inputs, "--strategy=libra", "--gathers", *files]) == 0
    plan = tf_libra.make_plan(known, COST, "libra", gathers=True)
    assert tf_libra.Plan.from_json((tmp_path / "plan.json").read_text()) == plan
    assert plan.gathers
    assert main(["explain", str(tmp_path / "plan.json"), *inputs]) == 0
    assert f"gather {len(plan.gathers) - 1}: " in capsys.readouterr().out
    assert main(["compare", *inputs, "--gathers", "--json"]) == 0
    rows = {row["strategy"]: row for row in json.loads(capsys.readouterr().out)}
    delay = tf_libra.simulate(known, plan, COST).forward_delay_seconds
    assert rows["libra"]["forward_delay_seconds"] == delay
    assert rows["libra"]["step_seconds"] <= rows["dear"]["step_seconds"]
    assert main(["compare", *inputs]) == 0
    assert "forward delay" in capsys.readouterr().out


def test_compare_ends_with_one_worker_if_the_whole_step_is_known(inputs, tmp_path, capsys):
    assert main(["compare", *inputs, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "whole_step_seconds" not in out and "rest_seconds" in err
    path = tmp_path / "whole.json"
    path.write_text(dataclasses.replace(PROFILE, rest_seconds=0.01).to_json())
    flags = [
        f"--profile={path}",
        *(input_ for input_ in inputs if not input_.startswith("--profile")),
    ]
    factors = ["--workers=2", "--batch_factor=3", "--link_factor=4"]
    assert main(["compare", *flags, *factors, "--json"]) == 0
    rows = {row["strategy"]: row for row in json.loads(capsys.readouterr().out)}
    whole = {name: row["whole_step_seconds"] for name, row in rows.items()}
    compute = float(PROFILE.compute_seconds.sum())
    assert whole["one worker"] == pytest.approx(2 * 3 * (0.01 + compute))
    cost = COST.with_workers(2).with_link_rate(4)
    plan = tf_libra.make_plan(PROFILE.with_batch(3), cost, "wfbp")
    step = tf_libra.simulate(PROFILE.with_batch(3), plan, cost).step_seconds
    assert whole["wfbp"] == pytest.approx(0.03 + step)
    assert main(["compare", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "whole step" in lines[0] and lines[-1].startswith("one worker")


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        (["--rate=5gbit"], "rate needs families"),
        (["--batch=48"], "batch needs families"),
        (["--rate=5gbit", "--link_factor=2"], "rate must be given without link_factor"),
        (["--families=families.json", "--rate=5tons"], "rate must be a positive number of bytes"),
        (["--families=families.json", "--rate=1e30"], "rate must be "),
        (["--families=families.json", "--batch=48"], "batch needs a job that has measured"),
    ],
)
def test_compare_names_flags_that_need_what_training_has_measured(
    inputs, flags, reported, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    families = FamilyComparison(8, (FamilyRow("data parallelism"),))
    (tmp_path / "families.json").write_text(families.to_json())
    assert main(["compare", *inputs, *flags]) == 2
    assert reported in capsys.readouterr().err


def test_simulate_has_backward_and_step_seconds(inputs, tmp_path, capsys):
    profile = tf_libra.BackwardProfile.from_arrays(
        PROFILE.num_bytes,
        PROFILE.compute_seconds,
        PROFILE.names,
        update_seconds=[1e-3] * len(PROFILE.tensors),
    )
    path = tmp_path / "with_updates.json"
    path.write_text(profile.to_json())
    flags = [
        f"--profile={path}",
        *(input_ for input_ in inputs if not input_.startswith("--profile")),
    ]
    assert main(["simulate", *flags, "--strategy=wfbp", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    timeline = tf_libra.simulate(profile, tf_libra.make_plan(profile, COST, "wfbp"), COST)
    assert row["backward_seconds"] == timeline.backward_seconds
    assert row["step_seconds"] == timeline.step_seconds > timeline.backward_seconds
    assert main(["simulate", *flags, "--strategy=wfbp"]) == 0
    assert formatting.time(timeline.step_seconds) in capsys.readouterr().out


def test_explain_prints_the_explanation(inputs, tmp_path, capsys):
    plan = tf_libra.make_plan(PROFILE, COST, "libra")
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert main(["explain", f"{tmp_path}/plan.json", *inputs]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"libra: {len(plan.groups)} groups of 6 tensors, 8 workers.")


@pytest.mark.parametrize("strategy", ["libra", "asc-wfbp"])
def test_plot_draws_every_all_reduce(inputs, tmp_path, capsys, strategy):
    pytest.importorskip("matplotlib")
    path = tmp_path / "timeline.svg"
    assert main(["plan", *inputs, f"--strategy={strategy}", f"--plot={path}"]) == 0
    assert xml.etree.ElementTree.parse(path).getroot().tag.endswith("svg")
    picture = path.with_suffix(".png")
    assert main(["plan", *inputs, f"--strategy={strategy}", f"--plot={picture}"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_predictions_name_the_error_of_the_model(inputs, tmp_path, capsys):
    evidence = Evidence((1, 2, 4), 60, 0.04, 0.12)
    (tmp_path / "cost_model.json").write_text(encode_cost_model(COST, evidence))
    (tmp_path / "profile.json").write_text(PROFILE.to_json())
    plan = tf_libra.make_plan(PROFILE, COST, "wfbp")
    (tmp_path / "plan.json").write_text(plan.to_json())
    logdir = [f"--profile={tmp_path}", f"--cost={tmp_path}"]  # as a run has written it
    for command in (
        ["compare", "--threads=1,4", "--num_threads=2"],
        ["simulate", f"--plan={tmp_path}"],
        ["explain", f"{tmp_path}/plan.json"],
        ["plan", "--threads=1,4"],
    ):
        assert main([command[0], *logdir, *command[1:]]) == 0
        reported = capsys.readouterr().err
        assert evidence.describe() in reported
        assert "extrapolated" not in reported
    assert main(["plan", *logdir, "--strategy=wfbp", "--num_threads=8"]) == 0
    assert "r = 8 are extrapolated; samples have r = 1 to 4" in capsys.readouterr().err
    assert main(["plan", *inputs]) == 0
    assert capsys.readouterr().err == ""


def test_explain_reads_a_log_directory(inputs, tmp_path, capsys):
    plan = tf_libra.make_plan(PROFILE, COST, "wfbp")
    logdir = tmp_path / "run"
    logdir.mkdir()
    (logdir / "cost_model.json").write_text(
        encode_cost_model(COST, Evidence((1, 2, 4), 60, 0.04, 0.12))
    )
    (logdir / "profile.json").write_text(PROFILE.to_json())
    assert main(["explain", str(logdir)]) == 2
    assert "plan.json': No such file" in capsys.readouterr().err
    (logdir / "plan.json").write_text(plan.to_json())
    assert main(["explain", str(logdir)]) == 0
    reported = capsys.readouterr().out
    assert (
        main(
            [
                "explain",
                str(logdir / "plan.json"),
                *(f"--{k}={logdir}" for k in ("profile", "cost")),
            ]
        )
        == 0
    )
    assert capsys.readouterr().out == reported
    assert main(["explain", *inputs, str(logdir)]) == 0  # files that are named go before


@pytest.mark.parametrize("threads", [(1, 2, 4), (1, 2), ()])
def test_alternatives_beyond_the_fitted_threads_are_marked(threads, tmp_path, capsys):
    plan = tf_libra.make_plan(PROFILE, COST, strategies.Wfbp(num_threads=2))
    (tmp_path / "plan.json").write_text(plan.to_json())
    (tmp_path / "profile.json").write_text(PROFILE.to_json())
    (tmp_path / "cost_model.json").write_text(
        encode_cost_model(COST, Evidence(threads, 9, 0.04, 0.12))
    )
    assert main(["explain", str(tmp_path)]) == 0
    reported = capsys.readouterr().out
    beyond = threads == (1, 2)
    count = len(plan.groups) if beyond else 0
    assert reported.count("  r = 4, extrapolated\n") == count
    assert (" with 4, extrapolated (" in " ".join(reported.split())) == beyond
    assert "r = 1, extrapolated" not in reported


def test_reasons_of_an_untrusted_model_have_a_caveat(inputs, tmp_path, capsys):
    plan = tf_libra.make_plan(PROFILE, COST, "wfbp")
    (tmp_path / "plan.json").write_text(plan.to_json())
    for error, begins in (
        (0.4, "predicted by a model that misses by 40.0 %:\nwfbp: "),
        (0.1, "wfbp: "),
    ):
        (tmp_path / "cost.json").write_text(
            encode_cost_model(COST, Evidence((1, 2, 4), 60, 0.04, error))
        )
        assert main(["explain", *inputs, f"{tmp_path}/plan.json"]) == 0
        assert capsys.readouterr().out.startswith(begins)


def test_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tf-libra {metadata.version('tf-libra')}\n"


def test_usage_names_positionals_and_defaults(capsys):
    assert main(["explain", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: tf-libra explain PLAN.json|LOGDIR [flags]")
    assert main(["plan", "--help"]) == 0
    reported = " ".join(capsys.readouterr().out.split())
    assert "(default: 'auto')" in reported
    # Those of strategies are the strategies' own.
    assert "tensor groups (libra); by default 10" in reported
    assert "backward computation (libra-m); by default 150" in reported
    assert "threads, kept sorted (libra-m, libra); by default 1,2,4" in reported
    assert "without chunks (libra); by default False" in reported
    assert "Measured trials need no gamma (aiacc) " in reported
    assert main(["plan", "--threats=1"]) == 2
    assert "usage: tf-libra plan [flags]" in capsys.readouterr().err


def test_usage(capsys):
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert main(["forecast"]) == 2
    assert "no command 'forecast'" in capsys.readouterr().err
    assert main(["plan", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.count("--max_groups:") == 1


def test_planning_imports_neither_tensorflow_nor_horovod():
    code = (
        "import sys, tf_libra, tf_libra.cli; tf_libra.make_plan, tf_libra.ContentionModel;"
        "print([m for m in ('tensorflow', 'horovod', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("family", [(), ("burst",), ("pipeline",)])
@pytest.mark.parametrize("command", ["plan", "simulate", "compare"])
def test_training_arguments_are_no_flags(family, command, capsys):
    assert main([*family, command, "--help"]) == 0
    flags = set(re.findall(r"^  --(?:\[no\])?(\w+)", capsys.readouterr().out, re.MULTILINE))
    assert flags & {"profile", "layers"}
    assert not flags & {"race", "seed", "exploration", "device_counts"}
