import json
import re
import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

import tf_libra
from tf_libra.cli import main
from tf_libra.internal import formatting
from tf_libra.model_parallel.planning.burst import strong_scaling_limit, with_device_counts
from tf_libra.model_parallel.simulation import BackgroundJob, Multiplexing, simulate_multiplexing

SCALING = tf_libra.ScalingProfile.chain(
    [1, 2, 4],
    np.array([[8.0, 4.0, 2.0], [8.0, 4.5, 3.0], [2.0, 1.5, 1.5]]) * 1e-3,
    np.array([[0.0, 0.1, 0.1], [0.0, 0.1, 0.1], [0.0, 1.0, 2.0]]) * 1e-3,
    np.full((2, 3, 3), 1e-4) * (1 - np.eye(3)),
    batch=8,
)


@pytest.fixture
def profile(tmp_path):
    (tmp_path / "profile.json").write_text(SCALING.to_json())
    return f"--profile={tmp_path}/profile.json"


def test_plan_writes_what_make_burst_plan_makes(profile, tmp_path, capsys):
    out, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    arguments = ["--max_amplification=1.5", f"--out={out}", f"--plot={picture}"]
    assert main(["burst", "plan", profile, *arguments]) == 0
    plan = tf_libra.BurstPlan.from_json(out.read_text())
    assert plan == tf_libra.make_burst_plan(SCALING, max_amplification=1.5)
    assert "devices idle for" in picture.read_text()
    xml.etree.ElementTree.parse(picture)
    assert main(["burst", "plan", profile, "--strategy=data-parallel", "--num_devices=2"]) == 0
    printed = tf_libra.BurstPlan.from_json(capsys.readouterr().out)
    assert printed.num_devices == (2, 2, 2)


def test_simulate_a_plan_with_a_background_job(profile, tmp_path, capsys):
    plan = tf_libra.make_burst_plan(SCALING, max_amplification=2)
    (tmp_path / "plan.json").write_text(plan.to_json())
    arguments = [
        f"--plan={tmp_path}/plan.json",
        "--background_seconds=1e-4,2e-4",
        "--background_batch=4",
        "--max_outstanding=0",
        "--operators_per_graph=0",
        "--max_slowdown=0",
    ]
    assert main(["burst", "simulate", profile, *arguments, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    free = Multiplexing(max_outstanding=None, operators_per_graph=None, max_slowdown=None)
    found = simulate_multiplexing(plan, BackgroundJob((1e-4, 2e-4), 4), free)
    assert row["iteration_seconds"] == pytest.approx(plan.iteration_seconds)
    assert row["foreground_slowdown"] == found.foreground_slowdown
    assert row["background_samples_per_second"] == 4 * found.background_iterations
    assert main(["burst", "simulate", profile, "--strategy=deeppool"]) == 0
    lines = dict(re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines())
    assert lines["iteration"] == formatting.time(plan.iteration_seconds)
    assert lines["idle share"].endswith(" %")


def test_compare_has_every_scale_and_limit(profile, tmp_path, capsys):
    picture = tmp_path / "compare.svg"
    arguments = ["--max_amplification=1.2,3", "--json", f"--plot={picture}"]
    assert main(["burst", "compare", profile, *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    seconds = {row["plan"]: row["iteration_seconds"] for row in found["plans"]}
    assert list(seconds) == [
        "data-parallel, 1",
        "data-parallel, 2",
        "data-parallel, 4",
        "deeppool, 1.2",
        "deeppool, 3",
        "deeppool, no limit",
        "search-linear, 1.2",
        "search-linear, 3",
        "search-linear, no limit",
    ]
    assert found["strong_scaling_limit_seconds"] == strong_scaling_limit(SCALING)
    assert seconds["deeppool, no limit"] <= min(seconds.values())
    assert "deeppool, 1.2: devices idle" in picture.read_text()
    assert "data-parallel, 4: devices idle" in picture.read_text()
    assert "data-parallel, 2" not in picture.read_text()
    assert main(["burst", "compare", profile]) == 0
    assert "no plan is below" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["plan"], 2, "profile must be given"),
        (["plan", "PROFILE", "--max_amplification=0.5"], 2, "max_amplification must be at least 1"),
        (["plan", "PROFILE", "--strategy=best"], 2, "strategy must be one of deeppool"),
        (["plan", "PROFILE", "more"], 2, "only flags are allowed, got more"),
        (["plan", "PROFILE", "--limit=2"], 2, "limit"),
        (["simulate", "PROFILE"], 2, "exactly one of plan and strategy must be given"),
        (
            ["simulate", "PROFILE", "--plan=x", "--max_amplification=2"],
            2,
            "max_amplification is an argument of strategies",
        ),
        (
            ["simulate", "PROFILE", "--strategy=deeppool", "--background_seconds=a"],
            2,
            "background_seconds must be numbers",
        ),
        (["compare", "PROFILE", "--max_amplification=x"], 2, "max_amplification must be numbers"),
        (["compare", "PROFILE", "--max_amplification=2,0.5"], 2, "must be at least 1, got 0.5"),
        (["compare", "PROFILE", "--max_amplification=nan"], 2, "must be a finite number, got nan"),
        (["fly"], 2, "no command 'fly'"),
        ([], 2, ""),
    ],
)
def test_bad_input_is_named(profile, capsys, arguments, status, message):
    assert main(["burst", *(profile if a == "PROFILE" else a for a in arguments)]) == status
    assert message in capsys.readouterr().err


def test_a_plan_is_simulated_with_the_requested_profile(profile, tmp_path, capsys):
    plan = tf_libra.make_burst_plan(SCALING)
    (tmp_path / "plan.json").write_text(plan.to_json())
    other = tf_libra.ScalingProfile.chain(
        SCALING.device_counts,
        2 * SCALING.compute_seconds,
        SCALING.synchronize_seconds,
        SCALING.transition_seconds,
    )
    (tmp_path / "profile.json").write_text(other.to_json())
    picture = tmp_path / "plan.svg"
    arguments = [f"--plan={tmp_path}/plan.json", "--background_seconds=1e-4", f"--plot={picture}"]
    assert main(["burst", "simulate", profile, *arguments, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    expected = with_device_counts(other, plan.num_devices)
    assert row["iteration_seconds"] == pytest.approx(expected.iteration_seconds)
    assert row["device_seconds"] == pytest.approx(expected.device_seconds)
    assert row["largest_amplification"] == pytest.approx(max(expected.amplification))
    idle = sum(expected.idle_seconds) / (4 * expected.iteration_seconds)
    assert row["idle_share"] == pytest.approx(idle)
    found = simulate_multiplexing(expected, BackgroundJob((1e-4,), 1))
    assert row["foreground_slowdown"] == pytest.approx(found.foreground_slowdown)
    assert f"devices idle for {100 * idle:.1f} %" in picture.read_text()


def test_operators_that_are_too_short_to_be_gone_through_are_named(tmp_path, capsys):
    hours = tf_libra.ScalingProfile.chain([1], [[7200.0]], [[0.0]], [])
    (tmp_path / "hours.json").write_text(hours.to_json())
    profile = f"--profile={tmp_path}/hours.json"
    arguments = [profile, "--strategy=deeppool", "--background_seconds=1e-300"]
    assert main(["burst", "simulate", *arguments]) == 2
    assert "operator_seconds must be at least" in capsys.readouterr().err


def test_too_many_seconds_are_an_error_of_one_line(tmp_path, capsys):
    """Overflow gives no warnings of numpy."""
    value = json.loads(SCALING.to_json())
    value["compute_seconds"][0][1] = 1e308
    (tmp_path / "large.json").write_text(json.dumps(value))
    refused = "device_seconds must be a finite number, got inf"
    assert main(["burst", "compare", f"--profile={tmp_path}/large.json"]) == 0
    reported = capsys.readouterr()
    [line] = [line for line in reported.out.splitlines() if refused in line]
    assert line.startswith("data-parallel, 2 ") and not reported.err


def test_spans_of_no_duration_are_drawn(tmp_path, capsys):
    nothing = tf_libra.ScalingProfile.chain([1, 2], np.zeros((1, 2)), np.zeros((1, 2)), [])
    (tmp_path / "nothing.json").write_text(nothing.to_json())
    picture = tmp_path / "nothing.svg"
    arguments = [f"--profile={tmp_path}/nothing.json", f"--plot={picture}"]
    assert main(["burst", "compare", *arguments]) == 0
    xml.etree.ElementTree.parse(picture)


def test_help_lists_the_commands_and_their_flags(capsys):
    assert main(["burst", "--help"]) == 0
    assert "compare" in capsys.readouterr().out
    assert main(["burst", "plan", "--help"]) == 0
    assert "--max_amplification" in capsys.readouterr().out.replace("--[no]", "--")


def test_planning_imports_neither_tensorflow_nor_horovod():
    code = (
        "import sys; import tf_libra; tf_libra.make_burst_plan; tf_libra.ScalingProfile; "
        "tf_libra.BurstPlan; import tf_libra.model_parallel.simulation; "
        "import tf_libra.model_parallel.commands.burst; "
        "assert not {'tensorflow', 'horovod', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
