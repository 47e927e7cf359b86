"""Jobs as users start them."""

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
