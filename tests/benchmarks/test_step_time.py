"""The benchmark, run for real on a tiny model. What it measures is not looked at here."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from absl import flags

from benchmarks import step_time
from tf_libra import Plan

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 3
STRATEGIES = ["wfbp", "none", "one-worker", "horovod", "libra", "spp:num_microbatches=2"]
VARIANTS = ["horovod:per_gradient", "horovod:grouped"]
# The batch normalization sees other data on every rank, so moving averages differ.
MODEL = """
import json
import os

import numpy as np

def rank():
    if "TF_CONFIG" in os.environ:
        return json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    import horovod.tensorflow as hvd
    return hvd.rank()

def build():
    import keras
    layers = [keras.Input((8,)), keras.layers.Dense(16), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dense(4)])
    data = np.random.default_rng(rank())
    loss = keras.losses.sparse_categorical_crossentropy
    return model, data.random((4, 8), np.float32), data.integers(4, size=4), loss

def incomplete():
    return build()[:3]
"""


def run(folder: Path, function: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(MODEL)
    command = [sys.executable, "-m", "benchmarks.step_time", f"--model={folder}/mine.py:{function}"]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """Returns the results that it writes as JSON, and its printed output."""
    folder = tmp_path_factory.mktemp("step_time")
    done = run(
        folder,
        "build",
        "--np=2",
        # One that needs fewer lanes comes first.
        f"--strategies={','.join(STRATEGIES)}",
        f"--rounds={ROUNDS}",
        f"--json={folder}/out.json",
        "--markdown",
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "out.json").read_text()), done.stdout


@pytest.mark.workers
def test_every_round_of_every_strategy_is_there(outcome: tuple[dict[str, Any], str]) -> None:
    document, _ = outcome
    assert list(document["strategies"]) == STRATEGIES
    assert document["rounds"] == ROUNDS
    assert set(document["seconds"]) == {*document["strategies"], *VARIANTS}
    for name, seconds in document["seconds"].items():
        assert len(seconds) == ROUNDS, name
        assert min(seconds) > 0, name
    for name, found in document["strategies"].items():
        p10, median, p90 = np.percentile(document["seconds"][name], (10, 50, 90))
        assert found == {"median_seconds": median, "p10_seconds": p10, "p90_seconds": p90}


@pytest.mark.workers
def test_ratios_follow_from_the_seconds(outcome: tuple[dict[str, Any], str]) -> None:
    document, _ = outcome
    baselines = ("one-worker", "horovod", "none")
    expected = {f"{a}/{b}" for a in STRATEGIES for b in baselines if a not in ("none", b)}
    assert set(document["ratios"]) == expected
    for pair, found in document["ratios"].items():
        above, below = (np.array(document["seconds"][name]) for name in pair.split("/"))
        p10, median, p90 = np.percentile(above / below, (10, 50, 90))
        assert found == pytest.approx({"median": median, "p10": p10, "p90": p90})


@pytest.mark.workers
def test_horovod_is_its_better_variant(outcome: tuple[dict[str, Any], str]) -> None:
    document, printed = outcome
    horovod = document["settings"]["horovod"]
    better = min(VARIANTS, key=lambda name: np.median(document["seconds"][name]))
    assert horovod["variant"] == better
    assert document["seconds"]["horovod"] == document["seconds"][better]
    assert list(horovod["variants"]) == VARIANTS
    assert horovod["cycle_seconds"] == 1e-3
    assert horovod["fusion_threshold_bytes"] == 128 * 2**20
    assert horovod["environment"]["HOROVOD_CPU_OPERATIONS"] == "gloo"
    assert not {"HOROVOD_RANK", "HOROVOD_GLOO_RENDEZVOUS_PORT"} & set(horovod["environment"])
    assert "cycle time 1 ms" in printed and "HOROVOD_CPU_OPERATIONS=gloo" in printed


@pytest.mark.workers
def test_report_has_plans_settings_and_machine(outcome: tuple[dict[str, Any], str]) -> None:
    document, _ = outcome
    assert document["plan"].pop("spp:num_microbatches=2")["strategy"] == "spp"
    plans = {name: Plan.from_json(json.dumps(plan)) for name, plan in document["plan"].items()}
    assert set(plans) == {"wfbp", "libra"}
    assert {plan.num_workers for plan in plans.values()} == {2}
    assert {plan.dtypes for plan in plans.values()} == {("float32",) * 6}
    settings = document["settings"]
    assert settings["np"] == 2
    assert settings["cores_per_worker"] == settings["intra_op_threads"] == 1
    assert settings["inter_op_threads"] == 2
    assert set(document["machine"]) == {"cpu", "cores", "kernel", "memory_bytes", "load_average"}
    assert {"python", "tensorflow", "horovod", "tf-libra"} <= set(document["versions"])


@pytest.mark.workers
def test_prints_the_table(outcome: tuple[dict[str, Any], str]) -> None:
    _, printed = outcome
    rows = [line.split("|")[1].strip() for line in printed.splitlines() if line.startswith("|")]
    assert rows[0] == "strategy"
    # Behind the name may stand who planned instead: that depends on what was measured.
    assert [row.split()[0] for row in rows[2:]] == STRATEGIES
    assert "one-worker: rank 0 alone trains the batches of all 2 workers as one" in printed


@pytest.mark.workers
def test_strategy_of_tensorflow_is_measured_in_a_job_of_its_own(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "build",
        "--np=2",
        "--strategies=none,one-worker,mwms,wfbp",
        "--rounds=2",
        f"--json={tmp_path}/out.json",
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert list(document["strategies"]) == ["none", "one-worker", "mwms", "wfbp"]
    assert {"wfbp/mwms", "mwms/none", "wfbp/none", "wfbp/one-worker"} <= set(document["ratios"])
    assert min(document["seconds"]["one-worker"]) > 0
    assert Plan.from_json(json.dumps(document["plan"]["wfbp"])).num_workers == 2
    assert "horovod:" not in done.stdout


@pytest.mark.workers
def test_workers_that_fail_end_it(tmp_path: Path) -> None:
    done = run(tmp_path, "incomplete", "--rounds=1", f"--json={tmp_path}/out.json")
    assert done.returncode == 1
    assert "must return (keras_model, inputs, labels, loss)" in done.stderr
    assert not (tmp_path / "out.json").exists()


def parse(*arguments: str) -> None:
    copy.deepcopy(step_time.FLAGS)([step_time.__name__, *arguments])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--np=1", "must be at least 2: one worker has no peer to all-reduce with"),
        ("--np=4096", f"must be at most {len(os.sched_getaffinity(0))}"),
        (
            "--model=cnn6m",
            "must be one of mlp, cnn5m, vgg, vgg13, resnet20, transformer, embedding",
        ),
        (
            "--strategies=none,fastest",
            "must name one or more of none, one-worker, mwms, horovod, syneasgd",
        ),
        ("--strategies=none,none", "each once; got none,none"),
        ("--strategies=mwms,horovod", "of different jobs"),
        ("--strategies=mwms,deeppool", "have no job of mwms"),
        ("--strategies=", "must name one or more of"),
        ("--rounds=0", "rounds"),
        ("--seed=-1", "seed"),
        ("--inter_op_threads=0", "inter_op_threads"),
        ("--json=/absent/out.json", "there is no folder '/absent'"),
        ("--hosts=1", "hosts"),
        ("--hosts=4096", f"must be at most {len(os.sched_getaffinity(0))}"),
    ],
)
def test_bad_flags_are_named(argument: str, message: str) -> None:
    flag = argument.partition("=")[0].removeprefix("--")
    with pytest.raises(flags.IllegalFlagValueError) as raised:
        parse(argument)
    assert f"flag --{flag}" in str(raised.value)
    assert message in str(raised.value)


@pytest.fixture
def mpich(tmp_path: Path) -> Path:
    """A folder with an mpiexec, which starts processes one after the other and says so."""
    mpiexec = tmp_path / "bin" / "mpiexec.hydra"
    mpiexec.parent.mkdir()
    mpiexec.write_text(f'#!/bin/sh\necho "$HOROVOD_CONTROLLER $*" > {tmp_path}/called\nexit 7\n')
    mpiexec.chmod(0o755)
    return tmp_path


def test_mpich_on_one_host_starts_the_workers(mpich: Path) -> None:
    """Without an interface or a transport of its own choosing: MPICH takes shared memory."""
    done = run(mpich, "build", "--np=2", f"--mpich={mpich}", "--strategies=none")
    assert done.returncode == 1
    assert "the workers failed with status 7" in done.stderr
    called = (mpich / "called").read_text()
    assert called.startswith("mpi -n 2 ") and "benchmarks.jobs.worker interleaved" in called


def test_mpich_is_of_a_horovod_that_is_there(mpich: Path) -> None:
    with pytest.raises(flags.IllegalFlagValueError, match=r"no bin/mpiexec\.hydra in '/absent'"):
        parse("--mpich=/absent")
    with pytest.raises(flags.IllegalFlagValueError, match="not in a job of mwms"):
        parse(f"--mpich={mpich}", "--strategies=mwms,libra")


@pytest.mark.parametrize("argument", ["--rate=5gbit", "--flow_rate=1gbit"])
def test_a_network_needs_hosts(argument: str) -> None:
    with pytest.raises(flags.IllegalFlagValueError) as raised:
        parse(argument)
    assert "say how many --hosts" in str(raised.value)


def test_hosts_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(flags.IllegalFlagValueError, match="need root"):
        parse("--hosts=2")
