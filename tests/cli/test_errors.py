"""Errors of `tf-libra`: flags, files and the machine."""

import json
import os
import subprocess
import sys

import pytest

from tests.cli.conftest import COST
from tf_libra.cli import main


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["plan", "--strategy=fastest"], 2, "strategy must be one of syneasgd"),
        (["plan", "--strategy=libra", "--max_groups=0"], 2, "max_groups must be from 1"),
        (["plan", "--strategy=libra", "--chunks=0"], 2, "chunks must be from 1"),
        (["plan", "--strategy=libra", "--chunks=many"], 2, "chunks"),
        (["plan", "--threads=1,x"], 2, "threads must be integers"),
        (["plan", "--threads=0"], 2, "threads must be from 1"),
        (
            ["plan", "--strategy=libra", "--threads=1,100"],
            2,
            "compute: alpha1 - alpha2*r must be positive at r = 100",
        ),
        (["plan", "--strategy=wfbp", "--chunks=3"], 2, "chunks is not an argument of wfbp"),
        (["plan", "--strategy=asc-wfbp", "--contention=nan"], 2, "contention must be a finite"),
        (["plan", "--strategy=asc-wfbp", "--rule=eq"], 2, "rule must be one of published-code"),
        (["plan", "--strategy=mg-wfbp", "--min_elements=-1"], 2, "min_elements must be from 0"),
        (["plan", "--workers=0"], 2, "workers must be from 1"),
        (["plan", "extra"], 2, "only flags are allowed"),
        (["plan", "--unknown=1"], 2, "unknown"),
        (["simulate"], 2, "exactly one of plan and strategy"),
        (["simulate", "--plan=x", "--gathers"], 2, "gathers must be left out with plan"),
        (["simulate", "--plan=x", "--max_groups=3"], 2, "max_groups is an argument of strategies"),
        (["simulate", "--strategy=wfbp", "--workers=8,0"], 2, "workers must be from 1"),
        (["explain"], 2, "arguments must be PLAN.json|LOGDIR, got 0 arguments"),
    ],
)
def test_bad_input_is_named(inputs, capsys, arguments, status, words):
    command, *rest = arguments
    assert main([command, *inputs, *rest]) == status
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("profile", lambda v: v.update(tensors=[]), "tensors must hold at least one"),
        ("profile", lambda v: v.update(extra=1), "has unknown keys ['extra']"),
        ("profile", lambda v: v["tensors"][0].update(size=1), "tensors[0] has unknown keys"),
        ("profile", lambda v: v["tensors"][1].update(num_bytes=-1), "num_bytes must be from 0"),
        ("profile", lambda v: v["tensors"][2].update(compute_seconds=-1e-3), "must be at least 0"),
        ("profile", lambda v: v.update(version=2), "version of tf-libra profile must be 1"),
        ("cost", lambda v: v.update(gamma=1), "has unknown keys ['gamma']"),
        ("cost", lambda v: v.update(num_workers=0), "num_workers must be from 1"),
        ("cost", lambda v: v.update(hop_latency=-1), "hop_latency must be at least 0"),
        ("cost", lambda v: v.update(hop_latency=1e308), "must add up to a finite number, got inf"),
        ("cost", lambda v: v.update(compute=[0, 0]), "alpha1 must be greater than 0"),
        ("cost", lambda v: v.update(exclusive=[1e9, 2e9, 0]), "must be positive at r ="),
    ],
)
@pytest.mark.parametrize("command", ["plan", "compare"])
def test_bad_content_is_named(inputs, tmp_path, capsys, command, name, change, words):
    path = tmp_path / f"{name}.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    assert main([command, *inputs]) == 2
    reported = capsys.readouterr().err
    assert words in reported and reported.count("\n") == 1


def test_bad_files_are_named(inputs, tmp_path, capsys):
    (tmp_path / "cost.json").write_text(COST.to_json().replace("1e-05", "NaN"))
    assert main(["plan", *inputs]) == 2
    assert "cost.json: hop_latency must be a finite number, got NaN" in capsys.readouterr().err
    assert main(["plan", inputs[0], f"--cost={tmp_path}/none.json"]) == 2
    assert "none.json" in capsys.readouterr().err
    assert main(["explain", *inputs[:1], f"--cost={tmp_path}/profile.json", "plan.json"]) == 2
    assert "profile.json: " in capsys.readouterr().err
    (tmp_path / "cost.json").write_text(COST.to_json())
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe")
    assert main(["explain", *inputs, f"{tmp_path}/plan.json"]) == 2
    assert f"'{tmp_path}/plan.json' is not a text file" in capsys.readouterr().err
    assert main(["plan", inputs[0]]) == 2
    assert "cost must be given" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["plan"], ["compare"], ["explain", "plan.json"]])
def test_bad_picture_path_is_an_error_before_planning(command, capsys):
    flags = ["--plot=x.jpg"] if command != ["compare"] else ["--plot=x.svg"]
    assert main([*command, *flags]) == 2
    reported = capsys.readouterr().err
    assert ("plot must end in .svg or .png, got 'x.jpg'" in reported) == (command != ["compare"])


def test_failure_of_the_machine_has_status_1(inputs, capsys):
    assert main(["plan", *inputs, "--out=/dev/full"]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert main(["plan", *inputs, "--out=/no/such/folder/plan.json"]) == 2
    assert "/no/such/folder/plan.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "out of memory"),
        (MemoryError("Unable to allocate 8 TiB"), "out of memory: Unable to allocate 8 TiB"),
    ],
)
def test_out_of_memory_is_one_line(inputs, capsys, monkeypatch, error, message):
    def plan(*_, **__):
        raise error

    monkeypatch.setattr(sys.modules[main.__module__], "make_plan", plan)
    assert main(["plan", *inputs]) == 1
    assert capsys.readouterr().err == f"tf-libra plan: {message}\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_behind_stdout_is_one_line(unbuffered):
    command = [sys.executable, "-m", "tf_libra.cli", "--version"]
    variables = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=variables
        )
    assert (ended.returncode, ended.stderr) == (1, "tf-libra: No space left on device\n")
