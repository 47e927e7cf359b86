"""Starts jobs of several worker processes, and ends exactly what it has started."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import cluster as cluster_lib
from benchmarks.cluster import Cluster
from benchmarks.rendezvous_env import free_addresses, meeting, tf_configs
from tests import process_stacks
from tests.forkserver import Nursery

ROOT = Path(__file__).resolve().parents[1]
JOBS = ROOT / "tests" / "jobs"
_STACKS = Path(process_stacks.__file__).resolve()
# Below pytest's own timeout, which would not say what the workers were at.
DEADLINE_SECONDS = 840.0
TAIL = 6000

# From a number of workers to what the environment of each says of its place in the job.
Launcher = Callable[[int], contextlib.AbstractContextManager[list[dict[str, str]]]]


@dataclass(frozen=True)
class Job:
    """The results of a job of several workers.

    Attributes:
        folder: where workers write their results.
        world_size: how many workers there were.
        returncodes: of each worker, by rank; negative is the signal that ended it.
    """

    folder: Path
    world_size: int
    returncodes: tuple[int, ...]

    def output(self, rank: int) -> str:
        """Returns the output of a worker, from either stream."""
        return (self.folder / f"output.{rank}.txt").read_text(errors="replace")

    def cases(self, rank: int) -> dict[str, Any]:
        """Returns the results of `harness.Cases`: by case, its value or error, and its log."""
        document = json.loads((self.folder / f"results.{rank}.json").read_text())
        assert isinstance(document, dict)
        return document

    def case(self, name: str, rank: int = 0) -> dict[str, Any]:
        """One case of `cases`."""
        found = self.cases(rank).get(name)
        assert found is not None, f"rank {rank} did not come to {name}\n{self.output(rank)}"
        return dict(found)

    def value(self, name: str, rank: int = 0) -> Any:
        """Returns the value of a case; fails if it has raised."""
        found = self.case(name, rank)
        assert found["error"] is None, found["error"]["traceback"]
        return found["value"]

    def error(self, name: str, rank: int) -> str:
        """`Type: message` of what a case has raised; fails where it has not."""
        found = self.case(name, rank)
        assert found["error"] is not None, f"{name} did not raise on rank {rank}: {found}"
        return f"{found['error']['type']}: {found['error']['message']}"

    def log(self, name: str, rank: int = 0) -> str:
        """Returns the log of a case, a line per record: level, message."""
        return "\n".join(" ".join(record) for record in self.case(name, rank)["log"])

    def arrays(self, name: str, rank: int = 0) -> dict[str, np.ndarray]:
        """The arrays that a case has saved."""
        with np.load(self.folder / f"{name}.{rank}.npz") as stored:
            return dict(stored)


def on_this_host(world_size: int) -> contextlib.AbstractContextManager[list[dict[str, str]]]:
    """Lets workers meet over loopback."""
    return meeting(f"localhost:{world_size}", "127.0.0.1", "lo")


@contextlib.contextmanager
def under_tf_config(world_size: int) -> Iterator[list[dict[str, str]]]:
    """Lets workers meet as TensorFlow's own do: what the environment of each says, by rank."""
    yield tf_configs(free_addresses(world_size))


@contextlib.contextmanager
def launched(world_size: int) -> Iterator[list[dict[str, str]]]:
    """Lets workers meet by variables such as torchrun's, without Horovod."""
    address, _, port = free_addresses(1)[0].rpartition(":")
    job = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": address, "MASTER_PORT": port}
    yield [job | {"RANK": str(rank)} for rank in range(world_size)]


class Workers:
    """The worker processes of one running job, each in a session of its own.

    They meet as under `horovodrun`, through Horovod's own rendezvous server, which runs here; but
    no process ends the others when one of them ends, so that what they do on their own can be seen.
    """

    def __init__(
        self,
        script: str,
        world_size: int,
        folder: Path,
        args: tuple[str, ...],
        env: dict[str, str],
        nursery: Nursery | None = None,
        cluster: Cluster | None = None,
        launcher: Launcher = on_this_host,
    ) -> None:
        self.folder = folder
        self.world_size = world_size
        self._stack = contextlib.ExitStack()
        per_host = world_size if cluster is None else world_size // len(cluster.hosts)
        environments = self._stack.enter_context(
            cluster_lib.rank_environments(cluster, per_host)
            if cluster is not None and launcher is on_this_host
            else launcher(world_size)
        )
        self.processes: list[Any] = []
        for rank, variables in enumerate(environments):
            environment = (
                worker_environment() | variables | {"TF_LIBRA_JOB_FOLDER": str(folder)} | env
            )
            output = folder / f"output.{rank}.txt"
            output.touch()  # tests may look before a forked worker opens it
            if nursery is not None:
                namespace = None if cluster is None else cluster.hosts[rank // per_host].namespace
                child = nursery.fork(JOBS / script, args, environment, output, namespace)
                self.processes.append(child)
                continue
            assert cluster is None, "workers in namespaces are forked"
            file = self._stack.enter_context(output.open("wb"))
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, _STACKS, JOBS / script, *args],
                    env=environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def wait(self, deadline_seconds: float, ranks: tuple[int, ...] | None = None) -> None:
        """Waits for the workers of these ranks (default: all) to end by themselves."""
        until = time.monotonic() + deadline_seconds
        for rank in range(self.world_size) if ranks is None else ranks:
            try:
                self.processes[rank].wait(timeout=max(until - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                pytest.fail(f"rank {rank} still ran after {deadline_seconds} s\n{self.describe()}")

    def describe(self) -> str:
        """Returns the end of each rank's output, and the stacks of those that still run."""
        lines = []
        for rank, process in enumerate(self.processes):
            path = self.folder / f"output.{rank}.txt"
            code = process.poll()
            lines.append(f"--- rank {rank}: {'runs' if code is None else f'ended with {code}'}")
            lines.append(path.read_text(errors="replace")[-TAIL:])
            if code is None:
                lines.append(process_stacks.describe(process.pid, path))
        return "\n".join(lines)

    def job(self) -> Job:
        """Returns the results that the workers have left behind; all have ended."""
        return Job(
            self.folder, self.world_size, tuple(process.wait(1) for process in self.processes)
        )

    def end(self) -> None:
        """Ends what still runs of this job, and nothing else."""
        for process in self.processes:
            if process.poll() is None:
                # Its own children, if any, are in the session that was started with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._stack.close()


def wait_until(true: Callable[[], bool], deadline_seconds: float) -> None:
    """Returns once it is true."""
    until = time.monotonic() + deadline_seconds
    while not true():
        assert time.monotonic() < until, "still not so"
        time.sleep(0.05)


def stat(pid: int) -> list[str]:
    """As /proc has it, from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def state(pid: int) -> str:
    """T is stopped, Z has ended; empty where there is no such process."""
    try:
        return stat(pid)[0]
    except FileNotFoundError:
        return ""


def wait_for_output(workers: Workers, rank: int, text: str, deadline_seconds: float) -> None:
    """Returns once a rank has printed `text`."""
    path = workers.folder / f"output.{rank}.txt"
    until = time.monotonic() + deadline_seconds
    while text not in path.read_text(errors="replace"):
        if time.monotonic() > until:
            pytest.fail(f"rank {rank} has not printed {text!r}\n{workers.describe()}")
        time.sleep(0.05)


# Beginnings of variables by which a launcher tells a process its place.
_OF_A_JOB = (
    "HOROVOD_",
    "TF_LIBRA_",
    "TF_CONFIG",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "SLURM_",
    "PMI",
    "OMPI_",
    "KERAS_DISTRIBUTION_",
)


# For jobs whose steps wait for Horovod; others only meet through it.
HOROVOD_IN_STEPS = {"HOROVOD_CYCLE_TIME": "10"}


def worker_environment() -> dict[str, str]:
    """The environment of a worker: this one's, without what belongs to another job.

    By default Horovod's ranks ask each other every millisecond whether there is something to do.
    That takes a sixteenth of a core each, as long as the job takes. Workers import the package of
    this tree, as the tests do, whichever tree the interpreter's environment was installed from.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(_OF_A_JOB)
    }
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return environment | {
        "PYTHONPATH": os.pathsep.join(paths),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
        "HOROVOD_CYCLE_TIME": "50",
    }


@contextlib.contextmanager
def running_workers(
    script: str,
    world_size: int,
    folder: Path,
    *args: str,
    env: dict[str, str] | None = None,
    nursery: Nursery | None = None,
    cluster: Cluster | None = None,
    launcher: Launcher = on_this_host,
) -> Iterator[Workers]:
    """Runs `tests/jobs/SCRIPT` in `world_size` processes; what is left of them ends with it.

    With a nursery they are forked from it, which is faster, and may live in a cluster.
    """
    workers = Workers(script, world_size, folder, args, env or {}, nursery, cluster, launcher)
    try:
        yield workers
    finally:
        workers.end()


def run_under_horovodrun(
    script: str, world_size: int, folder: Path, *args: str, env: dict[str, str] | None = None
) -> Job:
    """Runs a job script under `tf-libra run --horovod`. It must end within the deadline."""
    command = [Path(sys.executable).parent / "tf-libra", "run", "--horovod", "-np", str(world_size)]
    output = folder / "output.launcher.txt"
    with output.open("wb") as file:
        launcher = subprocess.Popen(
            [*command, sys.executable, _STACKS, JOBS / script, *args],
            env=worker_environment() | {"TF_LIBRA_JOB_FOLDER": str(folder)} | (env or {}),
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = launcher.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            printed = output.read_text(errors="replace")[-TAIL:]
            processes = process_stacks.descendants(launcher.pid)
            stacks = [process_stacks.describe(pid, output) for pid in processes]
            pytest.fail("\n".join(["still running:", printed, *stacks]))
        finally:
            if launcher.poll() is None:
                launcher.terminate()  # it ends its workers, which are in sessions of their own
                with contextlib.suppress(subprocess.TimeoutExpired):
                    launcher.wait(30)
                launcher.kill()
                launcher.wait()
    for rank in range(world_size):
        (folder / f"output.{rank}.txt").write_bytes(output.read_bytes())
    return Job(folder, world_size, (code,) * world_size)
