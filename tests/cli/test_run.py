"""Jobs as users start them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launching import Job, run_under_horovodrun
from tf_libra.cli import run as launcher


@pytest.fixture(scope="module")
def launched(plan_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run_under_horovodrun(
        "plans.py",
        2,
        tmp_path_factory.mktemp("launched"),
        str(plan_file),
        env={"TF_LIBRA_JOB_CASES": "three_groups decorated_method"},
    )


@pytest.mark.workers
def test_job_runs_under_tf_libra_run(launched: Job) -> None:
    assert launched.returncodes == (0, 0), launched.output(0)
    assert launched.value("three_groups", rank=1)["phases"] == ["run"]
    assert "tf_libra: run: plan" in launched.output(0)


@pytest.mark.parametrize("rank", [0, 1])
def test_same_plan_file_gives_the_same_bits_again(launched: Job, plans: Job, rank: int) -> None:
    first, again = (job.arrays("three_groups", rank) for job in (plans, launched))
    assert first.keys() == again.keys()
    for name, value in first.items():
        assert value.tobytes() == again[name].tobytes(), name


def test_no_arguments_print_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.main([]) == 2
    assert "tf-libra run -np 2 python train.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        (["-np", "0", "python", "train.py"], "-np must be .* at least 1, got '0'"),
        (["--num-proc=-2", "python", "train.py"], "--num-proc must be .* got '-2'"),
        (["--verbose", "-np", "two", "python"], "-np must be .* got 'two'"),
        (["-np"], "-np must be .* got ''"),
    ],
)
def test_number_of_workers_is_checked(
    arguments: list[str], got: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launcher.main(arguments) == 2
    assert re.search(got, capsys.readouterr().err)


def test_help_says_what_is_ours_and_then_what_is_horovods() -> None:
    program = Path(sys.executable).parent / "tf-libra"
    done = subprocess.run([program, "run", "--help"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    ours, theirs = done.stdout.index("TF_LIBRA_LOG_LEVEL"), done.stdout.index("--num-proc")
    assert ours < theirs
