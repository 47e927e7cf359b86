"""Starts the ranks of a step as processes, each with its own environment, and sees them end."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# How NCCL accepts two ranks on one GPU: by its own setting, or as ranks of two hosts.
MULTI_RANK, HOST_IDS = "multi-rank", "host ids"
PLACEMENTS = (MULTI_RANK, HOST_IDS)
_FIRST_MULTI_RANK = (2, 30)
_TAIL = 4000
# What a rank may take beyond its deadline to write its results and end.
_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Job:
    """Job of one rank; passed as JSON on its command line.

    Attributes:
      step: one of `documents.STEPS`.
      rank: of this process among all of the job's.
      world_size: processes of the job.
      teams: ranks of each team by its name. "planned" runs plans; in "own" NCCL chooses.
      store: a file through which the ranks find each other.
      output: the step's JSON file.
      folder: for logs.
      deadline: seconds since the epoch when the ranks must have ended.
      dry_run: on the processor, with Gloo.
      sharing: "mps" or "time slices".
      placement: one of `PLACEMENTS`, by which NCCL accepts two ranks on one GPU.
      method: "tuner" or "communicators": how the number of channels reaches NCCL.
      tuner: path of the tuner plugin; empty where there is none.
      threads: R, the numbers of communication threads.
      models: networks to profile or train.
      batch_factor: times each network's usual number of samples.
      seed: of orders.
    """

    step: str
    rank: int
    world_size: int
    teams: Mapping[str, Sequence[int]]
    store: str
    output: str
    folder: str
    deadline: float
    dry_run: bool
    sharing: str
    placement: str
    method: str
    tuner: str
    threads: tuple[int, ...]
    models: tuple[str, ...]
    batch_factor: float
    seed: int

    def to_json(self) -> str:
        """JSON text; `from_json` reads it back."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """Reads what `to_json` wrote."""
        value = json.loads(text)
        return cls(**value | {name: tuple(value[name]) for name in ("threads", "models")})

    @property
    def team(self) -> str:
        """The team of this rank."""
        return next(name for name, ranks in self.teams.items() if self.rank in ranks)


def choose_placement(nccl_version: Sequence[int]) -> str:
    """Returns the placement that an NCCL has: its own for several ranks on one GPU, if it has that.

    Args:
      nccl_version: such as (2, 30, 7).
    """
    return MULTI_RANK if tuple(nccl_version) >= _FIRST_MULTI_RANK else HOST_IDS


def nccl_environment(job: Job, threads_per_channel: int) -> dict[str, str]:
    """Returns the environment for two ranks on one GPU, which obey their plan."""
    environment = {
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_RAS_ENABLE": "0",
        "NCCL_DEBUG": "WARN",
    }
    if job.placement == MULTI_RANK:
        environment["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        # Kernels of both ranks must be on the GPU together, or each would wait for the other. A
        # communicator per number of threads has a limit of its own, which this one would replace.
        if job.team != "planned" or job.method != "communicators":
            environment["NCCL_MAX_CTAS"] = str(max(job.threads) // threads_per_channel)
    else:
        environment |= {
            # NCCL rejects two ranks of one host on one device, but accepts ranks of two hosts.
            "NCCL_HOSTID": f"rank-{job.rank}",
            "NCCL_NET": "Socket",
            "NCCL_NET_PLUGIN": "none",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_IB_DISABLE": "1",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
        }
    if job.team == "planned":
        # Only a ring with the simple protocol has NCCL_NTHREADS threads per channel.
        environment |= {
            "NCCL_ALGO": "Ring",
            "NCCL_PROTO": "Simple",
            "NCCL_NTHREADS": str(threads_per_channel),
        }
        if job.method == "tuner" and job.tuner:
            environment["NCCL_TUNER_PLUGIN"] = job.tuner
    if job.step == "channels":
        environment |= {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
            "NCCL_DEBUG_FILE": str(nccl_log(job)),
        }
    return environment


def nccl_log(job: Job) -> Path:
    """Returns the path of the log that a rank's NCCL writes."""
    return Path(job.folder) / f"nccl-{job.step}-{job.method}-{job.rank}.log"


def run(
    jobs: Sequence[Job], environments: Sequence[Mapping[str, str]]
) -> tuple[bool, tuple[str, ...]]:
    """Runs one process per job to its end, or ends it.

    When one fails the others are given a little time: they can only wait for it.

    Returns:
      Whether all ended well, and what to know if not: a text per rank with the end of its output.
    """
    processes, logs = [], []
    for job, environment in zip(jobs, environments, strict=True):
        log = Path(job.folder) / f"{job.step}-{job.rank}.out"
        logs.append(log)
        with log.open("w") as output:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.gpu.rank", job.to_json()],
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    end = jobs[0].deadline + _GRACE_SECONDS
    try:
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                end = min(end, time.time() + _GRACE_SECONDS)
            if time.time() > end:
                break
            time.sleep(_POLL_SECONDS)
    finally:
        late = [process for process in processes if process.poll() is None]
        for process in late:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    problems = []
    for job, process, log in zip(jobs, processes, logs, strict=True):
        if process.returncode != 0:
            how = "ended by force" if process in late else f"status {process.returncode}"
            text = log.read_text(errors="replace")[-_TAIL:]
            problems.append(f"{job.step}, rank {job.rank}: {how}\n{text}")
    return not problems, tuple(problems)
