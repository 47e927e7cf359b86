"""TensorFlow's own clusters as jobs, as far as one process can tell."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from benchmarks.rendezvous_env import free_addresses
from tests.forkserver import Nursery
from tests.worker_processes import under_tf_config, worker_environment
from tf_libra.backends import lanes_bootstrap
from tf_libra.coordination import mwms_job
from tf_libra.coordination.mwms_job import cluster_of
from tf_libra.coordination.world import World

JOBS = {
    "chief": ["a:1"],
    "worker": ["b:2", "[::1]:3"],
    "evaluator": ["c:4"],
    "ps": ["d:5"],
}


@pytest.mark.parametrize(
    ("kind", "index", "rank", "size", "host"),
    [
        ("chief", 0, 0, 3, "a"),
        ("worker", 0, 1, 3, "b"),
        ("worker", 1, 2, 3, "::1"),
        ("evaluator", 0, 0, 1, "c"),
        ("ps", 0, 0, 1, "d"),
    ],
)
def test_chief_comes_first_and_an_evaluator_is_alone(
    kind: str, index: int, rank: int, size: int, host: str
) -> None:
    cluster = cluster_of(JOBS, kind, index)
    assert (cluster.rank, len(cluster.tasks), cluster.host(rank)) == (rank, size, host)
    assert cluster.name(rank) == f"{kind} {index} at {JOBS[kind][index]}"


def test_ranks_are_those_of_tensorflow() -> None:
    from tensorflow.python.distribute import multi_worker_util

    spec = tf.train.ClusterSpec(JOBS)
    for kind, index in (("chief", 0), ("worker", 0), ("worker", 1)):
        cluster = cluster_of(JOBS, kind, index)
        assert cluster.rank == multi_worker_util.id_in_cluster(spec, kind, index)
        assert len(cluster.tasks) == multi_worker_util.worker_count(spec, kind)


def test_process_without_a_strategy_has_joined_nothing() -> None:
    assert mwms_job.joined() is None


def test_lost_rank_is_what_the_strategys_collectives_raise() -> None:
    error = mwms_job.MultiWorkerJob(cluster_of(JOBS, "chief", 0)).lost("rank 1 is gone")
    assert isinstance(error, tf.errors.UnavailableError)
    assert str(error) == "rank 1 is gone"


def test_address_of_the_cluster_is_where_lanes_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TF_LIBRA_INTERFACE", "HOROVOD_GLOO_IFACE"):
        monkeypatch.delenv(name, raising=False)
    assert lanes_bootstrap.listening_host(World(0, 4, 2, "10.1.2.3")) == "10.1.2.3"
    for host, words in (("localhost", "other hosts do not reach"), ("no.such.host.", "unknown")):
        with pytest.raises(ValueError, match=rf"(?s){host}.*{words}.*TF_LIBRA_INTERFACE"):
            lanes_bootstrap.listening_host(World(0, 4, 2, host))
    monkeypatch.setenv("TF_LIBRA_INTERFACE", "lo")
    assert lanes_bootstrap.listening_host(World(0, 4, 2, "localhost")) == "127.0.0.1"


STEP = """
import tensorflow as tf, tf_libra
{first}
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    variable = tf.Variable(3.0)
    optimizer = tf.keras.optimizers.SGD(0.5)
def replica(x):
    with tf.GradientTape() as tape:
        loss = variable * x
    optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
    return loss
@tf_libra.optimize("wfbp", progress=False)
@tf.function
def train_step(x):
    return strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)
print("loss", float(train_step(tf.constant(2.0))), float(train_step(tf.constant(2.0))))
print(train_step.phase)
"""
# Once the worker is gone the chief learns of it, in its next step. The worker goes on request: a
# rank that has ended a step may be gone before the others have what they need for theirs.
WORKER_ENDS = """
import os, signal, sys
sys.stdout.flush()
if "worker" in strategy.extended._worker_device:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
try:
    train_step(tf.constant(2.0))
except tf.errors.UnavailableError as error:
    print(error, flush=True)
os._exit(0)  # TensorFlow would wait for the worker
"""


RunAlone = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_alone(nursery: Nursery, tmp_path: Path) -> RunAlone:
    """The step above in a process of its own, by what comes first in it and its environment."""

    def run(first: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        script, output, errors = (tmp_path / name for name in ("step.py", "output", "errors"))
        script.write_text(STEP.format(first=first))
        env = worker_environment() | environment
        child = nursery.fork(script, (), env, output, errors=errors)
        code = child.wait(300)
        texts = (path.read_text(errors="replace") for path in (output, errors))
        return subprocess.CompletedProcess([str(script)], code, *texts)

    return run


def test_step_of_one_worker_runs_as_it_is(run_alone: RunAlone) -> None:
    with under_tf_config(1) as [place]:
        finished = run_alone(**place)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == ["loss 6.0 4.0", "pass-through"]
    assert "one process: train_step runs as it is" in finished.stderr
    assert "name more than one worker in TF_CONFIG" in finished.stderr


@pytest.mark.workers
def test_chief_and_worker_train_together_until_one_is_lost() -> None:
    chief, worker = free_addresses(2)
    cluster = {"chief": [chief], "worker": [worker]}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STEP.format(first="") + WORKER_ENDS],
            env=worker_environment()
            | {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for kind in cluster
    ]
    assert processes[0].stdout is not None
    try:
        trained = [processes[0].stdout.readline() for _ in range(2)]
        second, _ = processes[1].communicate(timeout=300)  # ends the standard input it waits for
        first, log = processes[0].communicate(timeout=300)
    finally:
        for process in processes:
            process.kill()
    # The sum of both losses, before and after a step against the sum of both gradients.
    assert trained == ["loss 12.0 4.0\n", "measure\n"], log
    assert second.splitlines() == ["loss 12.0 4.0", "measure"]
    assert processes[1].returncode == -signal.SIGKILL
    assert "rank 1 is gone" in first or "rank 1 closed the connection" in first, log


def test_evaluator_runs_as_it_is(run_alone: RunAlone) -> None:
    workers = free_addresses(3)
    config = {
        "cluster": {"worker": workers[:2], "evaluator": workers[2:]},
        "task": {"type": "evaluator", "index": 0},
    }
    finished = run_alone(TF_CONFIG=json.dumps(config))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == ["loss 6.0 4.0", "pass-through"]


def test_strategy_without_tf_config_is_rejected(run_alone: RunAlone) -> None:
    finished = run_alone()
    assert finished.returncode == 1
    assert "MultiWorkerMirroredStrategy was made while TF_CONFIG was not set" in finished.stderr


def test_job_of_both_horovod_and_tf_config_is_rejected(run_alone: RunAlone) -> None:
    with under_tf_config(1) as [place]:
        finished = run_alone("import horovod.tensorflow as hvd; hvd.init()", **place)
    assert finished.returncode == 1
    assert "a rank of Horovod, by hvd.init(), and a worker of TF_CONFIG" in finished.stderr
    assert "worker 0 at 127.0.0.1:" in finished.stderr


def test_strategy_in_a_job_of_horovods_of_one_process_runs_as_it_is(run_alone: RunAlone) -> None:
    finished = run_alone("import horovod.tensorflow as hvd; hvd.init()")
    assert finished.returncode == 0, finished.stderr
    assert "one process" in finished.stderr
