"""`tf-libra run`: jobs, flags and summaries."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker_processes import Job, run_under_horovodrun, worker_environment
from tf_libra.cli import run as launcher
from tf_libra.launcher.__main__ import main as launch_main


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
def test_same_plan_file_gives_the_same_bits(launched: Job, plans: Job, rank: int) -> None:
    first, again = (job.arrays("three_groups", rank) for job in (plans, launched))
    assert first.keys() == again.keys()
    for name, value in first.items():
        assert value.tobytes() == again[name].tobytes(), name


def test_no_arguments_print_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.main([]) == 2
    reported = capsys.readouterr().err
    assert "usage: tf-libra run" in reported and "-np 2 python train.py" in reported


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        (["-np", "0", "python", "train.py"], "-np must be .* at least 1, got '0'"),
        (["--num-proc=-2", "python", "train.py"], "--num-proc must be .* got '-2'"),
        (["--verbose", "-np", "two", "python"], "-np must be .* got 'two'"),
        (["-np"], "-np must be .* got ''"),
        (["--background", "", "-np", "2", "python"], "--background must be a command line, got ''"),
        (["--background"], "--background must have a value"),
        (["--background=absent one", "python"], "--background must be .* no program 'absent'"),
        (["--background=python other.py"], "a command is required after --background"),
        (["--max-slowdown=0", "python"], "max_slowdown must be a share above 0, got '0'"),
        (["--max-slowdown", "0.1", "-np", "2"], "--max-slowdown must be given with --background"),
    ],
)
def test_number_of_workers_is_checked(
    arguments: list[str], got: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launcher.main(arguments) == 2
    assert re.search(got, capsys.readouterr().err)


def test_help_has_own_flags_before_horovods() -> None:
    program = Path(sys.executable).parent / "tf-libra"
    done = subprocess.run([program, "run", "--help"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    ours, theirs = done.stdout.index("TF_LIBRA_LOG_LEVEL"), done.stdout.index("--num-proc")
    assert ours < theirs


PROGRAM = Path(sys.executable).parent / "tf-libra"


def launch(script: Path, text: str, *flags: str) -> "subprocess.Popen[str]":
    """Runs two workers of a script without TensorFlow and Horovod."""
    variable = "HOROVOD_RANK" if "--horovod" in flags else "RANK"
    script.write_text(f"import atexit, os, time, tf_libra\nrank = os.environ[{variable!r}]\n{text}")
    return subprocess.Popen(
        [PROGRAM, "run", *flags, "-np", "2", sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=worker_environment(),
        text=True,
        start_new_session=True,
    )


@pytest.mark.workers
def test_background_job_runs_and_ends_with_each_rank(tmp_path: Path) -> None:
    background = f"echo $$ > {tmp_path}/begun.$TF_LIBRA_BACKGROUND_RANK; exec sleep 600"
    job = launch(
        tmp_path / "train.py",
        "from tf_libra.background_jobs.manager import current_manager\n"
        "job = current_manager().background\n"
        f"begun = f'{tmp_path}/begun.{{rank}}'\n"
        "while not os.path.exists(begun) or not os.path.getsize(begun):\n"
        "    with job.around_step(lambda: True):\n"
        "        pass\n"
        "    while job.runs and not os.path.exists(begun):\n"
        "        time.sleep(0.01)\n"
        "print(job.describe())\n",
        f"--background=sh -c {shlex.quote(background)}",
        "--max-slowdown=0.2",
    )
    reported = job.communicate(timeout=300)[0]
    assert job.returncode == 0, reported
    assert reported.count("ran during") >= 2
    for rank in range(2):
        pid = int((tmp_path / f"begun.{rank}").read_text())
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.workers
@pytest.mark.parametrize("way", ["--no-horovod", "--horovod"])
def test_last_lines_name_the_error(way: str, tmp_path: Path) -> None:
    job = launch(
        tmp_path / "train.py",
        "if rank == '1':\n    time.sleep(600)\ntf_libra.BackwardProfile.from_arrays([1], [-1.0])\n",
        way,
    )
    reported = job.communicate(timeout=300)[0]
    assert job.returncode == 1
    last = reported.splitlines()[-4:]
    assert last[0] == "tf-libra run: the job has ended with an error"
    assert last[1].startswith("rank 0: ValueError: ")
    assert "compute_seconds must be at least 0" in last[1]
    assert "TF_LIBRA_TRACEBACK=full" in last[2]
    assert "troubleshooting.md" in last[3]
    # Neither the launcher's frames nor the library's; the script's are there.
    assert "horovod/runner" not in reported
    assert "tf_libra/specs" not in reported
    assert f'File "{tmp_path}/train.py"' in reported


@pytest.mark.workers
def test_ctrl_c_prints_the_summary(tmp_path: Path) -> None:
    job = launch(
        tmp_path / "train.py",
        "atexit.register(print, 'summary of', rank)\nprint('ready', rank, flush=True)\n"
        "time.sleep(600)\n",
    )
    assert job.stdout is not None
    ready: set[str] = set()
    for line in job.stdout:
        ready |= set(re.findall(r"ready (\d)", line))
        if len(ready) == 2:
            break
    job.send_signal(signal.SIGINT)
    reported = job.communicate(timeout=300)[0]
    assert job.returncode == 130
    assert {"summary of 0", "[1]<stdout>:summary of 1"} <= set(reported.splitlines())
    assert reported.splitlines()[-1] == "tf-libra run: ended by Ctrl-C"
    assert "Traceback" not in reported


TRAINING = """
import os, signal
import horovod.tensorflow as hvd
import tensorflow as tf
import tf_libra

hvd.init()
weight = tf.Variable(tf.ones((64, 64)))

@tf_libra.optimize("wfbp", faults=tf_libra.Faults(stall_warn_seconds=0.5))
@tf.function
def train_step(features):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((features @ weight) ** 2)
    [gradient] = tape.gradient(loss, [weight])
    weight.assign_sub(0.1 * gradient)
    return loss

for step in range(1000):
    if step == 5 and hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)  # the other rank waits for it, in C++
    train_step(tf.ones((8, 64)))
"""


@pytest.mark.workers
def test_ctrl_c_in_a_waiting_step_prints_the_summary(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    job = subprocess.Popen(
        [PROGRAM, "run", "-np", "2", sys.executable, tmp_path / "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert job.stdout is not None
    for line in job.stdout:
        if "step 6; still waiting" in line:  # and not one of the first, on a busy machine
            break
    job.send_signal(signal.SIGINT)
    reported = job.communicate(timeout=300)[0]
    assert job.returncode == 130, reported
    assert "tf_libra: train_step: 5 steps, ended before a plan was active" in reported
    assert reported.splitlines()[-1] == "tf-libra run: ended by Ctrl-C"
    assert "Traceback" not in reported


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-np", "2"], "a command is required"),
        (["python", "train.py"], "required: -np/--num-proc"),  # of Horovod's parser
        (["-np", "2", "--hostfile", "/no/such", "true"], "'/no/such': No such file or directory"),
        (["-np", "2", "-H", "localhost", "true"], "-H must be HOST:SLOTS"),
        (["-np", "3", "-H", "localhost:2", "true"], "-np 3 is more than -H localhost:2 has slots"),
    ],
)
def test_bad_run_flags_are_reported(
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["launch", *arguments])
    monkeypatch.setattr("horovod.runner.launch.run_commandline", pytest.fail)  # no job is started
    try:
        status = launch_main([])
    except SystemExit as ended:  # Horovod's parser has printed the error
        status = ended.code
    assert status == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("way", ["--no-horovod", "--horovod"])
def test_both_ways_report_the_same_error(way: str) -> None:
    done = subprocess.run(
        [PROGRAM, "run", way, "-np", "2"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2
    assert "a command is required" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-np", "2"], "a command is required"),
        (["python", "train.py"], "-np is required"),
        (["-np", "2", "-H", "node1:2", "python", "train.py"], "-H: .*--horovod"),
        (["-np", "2", "--hostfile=hosts", "python", "train.py"], "--hostfile: .*--horovod"),
        (["-np", "2", "--cycle-time-ms", "1", "true"], "unknown option --cycle-time-ms"),
        (["-np", "2", "--", "--cycle-time-ms"], "unknown option --cycle-time-ms"),
        (["-np", "2", "train.py", "--lr", "1"], "python train.py --lr 1"),
        (["-np", "2", "tf-libra-no-program"], "'tf-libra-no-program' was not found"),
        (["-np", "2", "/"], "'/' was not found"),
    ],
)
def test_bad_flags_without_horovod_are_reported(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launcher.main(arguments) == 2
    assert re.search(words, capsys.readouterr().err)


def test_two_dashes_end_the_options() -> None:
    command_line = launcher.parse(["-np", "2", "--", "python", "train.py", "--", "-np", "3"])
    assert command_line.num_ranks == 2
    assert command_line.rest == ["python", "train.py", "--", "-np", "3"]


def test_unknown_launcher_is_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_LIBRA_LAUNCHER", "slurm")
    assert launcher.main(["-np", "2", "true"]) == 2
    assert "TF_LIBRA_LAUNCHER" in capsys.readouterr().err


def test_without_horovod_its_scripts_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import horovod.tensorflow as hvd\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert launcher.main(["-np", "2", "python", str(script)]) == 1
    said = capsys.readouterr().err
    assert "tf-libra[horovod]" in said and "train.py, line 1" in said


def test_script_that_can_do_without_horovod_runs_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text("try:\n    import horovod\nexcept ImportError:\n    horovod = None\n")
    command_line = launcher.parse(["-np", "2", "python", str(script)])
    assert launcher._decide(command_line)[0]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not launcher._decide(command_line)[0]
