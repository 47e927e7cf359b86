"""Rank, size and meeting address of this process, from the variables of its launcher.

Each parser reads the variables of one environment. Nothing here connects to another process.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tf_libra.coordination.launcher_hosts import expand_nodes, first_host, launching_process
from tf_libra.coordination.launcher_variables import (
    MAX_PORT,
    PORT_CANDIDATES,
    Env,
    main_address,
    number,
    rank_below,
    required,
    same,
    split_address,
)
from tf_libra.launcher import SELECT_VARIABLE

# Values of TF_LIBRA_LAUNCHER that name no parser.
AUTO, HOROVOD, ONE_PROCESS = "auto", "horovod", "none"
_HOROVOD_RANK = "HOROVOD_RANK"
_TORCHRUN_ID = "TORCHELASTIC_RUN_ID"
_LOCALHOST = "127.0.0.1"
# Task types of TF_CONFIG that train together, in the order of their ranks.
TRAINING_TASKS = ("chief", "worker")
# Task type of TF_CONFIG that runs the script alone, while the others train.
_EVALUATOR = "evaluator"


@dataclass(frozen=True)
class LauncherEnvironment:
    """Place of this process in the job that a launcher has started.

    Attributes:
        name: name of the environment, as in TF_LIBRA_LAUNCHER.
        rank: rank of this process, from 0.
        world_size: number of processes.
        local_rank: rank among the processes of this host; None if the launcher does not say.
        local_world_size: number of processes on this host; None if the launcher does not say.
        address: host name or IP address of rank 0; "" for one process.
        port: first port at which rank 0 may listen.
        num_ports: number of ports, from `port` on, at which rank 0 may listen.
        job_id: identity of the job, which keeps apart jobs that use the same ports.
        job_id_source: variables that the identity comes from; "" if it does not depend on any.
    """

    name: str
    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int | None = None
    address: str = ""
    port: int = 0
    num_ports: int = 1
    job_id: str = ""
    job_id_source: str = ""

    @property
    def ports(self) -> range:
        """Ports at which rank 0 may listen."""
        return range(self.port, self.port + self.num_ports)


def detect(env: Env = os.environ) -> LauncherEnvironment | None:
    """Returns the place of this process; None if no launcher has set variables.

    Args:
        env: environment variables.

    Raises:
        ValueError: a variable has an invalid value, or is missing; names it.
    """
    selected = env.get(SELECT_VARIABLE, "") or AUTO
    if selected not in (AUTO, HOROVOD, ONE_PROCESS, *_PARSERS):
        allowed = ", ".join((AUTO, *_PARSERS, HOROVOD, ONE_PROCESS))
        raise ValueError(f"{SELECT_VARIABLE} must be one of {allowed}, got {selected!r}")
    if selected == HOROVOD:
        return None
    if selected == ONE_PROCESS:
        return LauncherEnvironment(ONE_PROCESS, 0, 1)
    if selected != AUTO:
        return _checked(_PARSERS[selected].parse(env))
    # Horovod's launcher may itself run under Slurm or MPI.
    if _HOROVOD_RANK in env:
        return None
    for parser in _PARSERS.values():
        if parser.applies(env):
            return _checked(parser.parse(env))
    _reject_half_of_torchrun(env)
    return None


def disagreements(found: LauncherEnvironment, env: Env = os.environ) -> list[LauncherEnvironment]:
    """Returns the places that variables of other launchers give this process, if they differ.

    Variables exported in a shell, for example, are inherited by all ranks that it starts.

    Args:
        found: place of this process, from `detect`.
        env: environment variables.
    """
    if found.name not in _PARSERS or env.get(_TORCHRUN_ID) is not None:
        return []  # torchrun itself is started once per host, by Slurm for example
    others = []
    for name, parser in _PARSERS.items():
        with contextlib.suppress(ValueError):  # not the one that decides
            if name != found.name and parser.applies(env):
                others.append(parser.parse(env))
    rank_and_size = (found.rank, found.world_size)
    return [other for other in others if (other.rank, other.world_size) != rank_and_size]


def launched_rank(env: Env = os.environ) -> int:
    """Returns the rank that a process was started as, under any launcher; 0 without one.

    It is for messages before the rendezvous: an invalid variable, which the rendezvous will report,
    counts as rank 0.

    Args:
        env: environment variables.
    """
    try:
        found = detect(env)
        if found is not None:
            return found.rank
        return number(env, _HOROVOD_RANK) if _HOROVOD_RANK in env else 0
    except ValueError:
        return 0


def _reject_half_of_torchrun(env: Env) -> None:
    """Raises `ValueError` if an address is set, but only one of rank and world size.

    The process would train alone, and so would the others.
    """
    halves = [name for name in ("RANK", "WORLD_SIZE") if name in env]
    has_address = "MASTER_ADDR" in env or "MASTER_PORT" in env
    if len(halves) == 1 and has_address and env.get("WORLD_SIZE", "").strip() != "1":
        [missing] = {"RANK", "WORLD_SIZE"} - set(halves)
        raise ValueError(
            f"{missing} is not set, but {halves[0]} and an address of rank 0 are: set both, or"
            f" {SELECT_VARIABLE}={ONE_PROCESS} to train in one process"
        )


def is_horovod_selected(env: Env = os.environ) -> bool:
    """Returns whether the user has selected Horovod's own job."""
    return env.get(SELECT_VARIABLE) == HOROVOD


def _checked(found: LauncherEnvironment) -> LauncherEnvironment:
    if found.local_rank is None or found.local_world_size is None:
        return found
    if found.local_world_size > found.world_size or found.local_rank >= found.local_world_size:
        raise ValueError(
            f"{found.name}: the local rank must be below the local size, and that at most the"
            f" world size, got local rank {found.local_rank}, local size {found.local_world_size}"
            f" and world size {found.world_size}"
        )
    return found


# Environments.


def _parse_torchrun(env: Env) -> LauncherEnvironment:
    size = number(env, "WORLD_SIZE", 1)
    rank = rank_below(env, ("RANK",), size, "WORLD_SIZE")
    local = same(env, ("LOCAL_RANK",)), same(env, ("LOCAL_WORLD_SIZE",), 1)
    if size == 1:
        return LauncherEnvironment("torchrun", rank, size, *local)
    if "MASTER_PORT" not in env:
        number(env, "MASTER_PORT", 1, MAX_PORT)  # raises
    address, port, num_ports = main_address(env, "RANK and WORLD_SIZE", "", "")
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun itself listens at MASTER_PORT.
        port, num_ports = min(port + 1, MAX_PORT - PORT_CANDIDATES), PORT_CANDIDATES
    restart = env.get("TORCHELASTIC_RESTART_COUNT", "0")
    job_id = f"{env.get(_TORCHRUN_ID, '')}/{restart}"
    return LauncherEnvironment(
        *("torchrun", rank, size, *local, address, port, num_ports, job_id),
        f"{_TORCHRUN_ID} and TORCHELASTIC_RESTART_COUNT",
    )


def _tf_config(env: Env) -> dict[str, object]:
    text = env.get("TF_CONFIG", "")
    try:
        config = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise ValueError(f"TF_CONFIG must be JSON ({error}), got {text!r:.200}") from None
    if not isinstance(config, dict):
        raise ValueError(f"TF_CONFIG must be a JSON object, got {text!r:.200}")
    return config


def _parse_tf_config(env: Env) -> LauncherEnvironment:
    config = _tf_config(env)
    cluster, task = config.get("cluster"), config.get("task")
    if not isinstance(cluster, dict) or not all(isinstance(v, list) for v in cluster.values()):
        raise ValueError(
            f"TF_CONFIG: cluster must be an object of lists of addresses, got {cluster!r:.200}"
        )
    if not isinstance(task, dict) or task.get("type") not in cluster:
        kinds = ", ".join(map(str, cluster)) or "none"
        raise ValueError(
            f"TF_CONFIG: task must have a type of the cluster ({kinds}), got {task!r:.200}"
        )
    kind = task["type"]
    index = number({"TF_CONFIG: task index": str(task.get("index", ""))}, "TF_CONFIG: task index")
    if index >= len(cluster[kind]):
        raise ValueError(
            f"TF_CONFIG: task index must be below the number of tasks of type {kind!r},"
            f" {len(cluster[kind])}, got {index}"
        )
    if kind == _EVALUATOR:
        return LauncherEnvironment("tf-config", 0, 1)
    if kind not in TRAINING_TASKS:
        allowed = ", ".join((*TRAINING_TASKS, _EVALUATOR))
        raise ValueError(
            f"TF_CONFIG: a task that runs the script must have one of the types {allowed}, got"
            f" {kind!r}: gradients are averaged without parameter servers"
        )
    tasks = [(k, i) for k in TRAINING_TASKS for i in range(len(cluster.get(k, ())))]
    addresses = [str(address) for k in TRAINING_TASKS for address in cluster.get(k, ())]
    return _of_addresses("tf-config", tasks.index((kind, index)), addresses, "TF_CONFIG")


def _of_addresses(
    name: str, rank: int, addresses: Sequence[str], variable: str
) -> LauncherEnvironment:
    """Returns the place of a rank in a job whose launcher lists the addresses of all ranks."""
    size = len(addresses)
    endpoints = [split_address(address, variable) for address in addresses]
    if len(set(endpoints)) < size:
        twice = next(repeated for i, repeated in enumerate(addresses) if repeated in addresses[:i])
        raise ValueError(f"{variable} must name every address once, got {twice!r} twice")
    hosts = [host for host, _ in endpoints]
    local = [r for r in range(size) if hosts[r] == hosts[rank]]
    job_id = f"{zlib.crc32(','.join(addresses).encode()):08x}"
    address, port = endpoints[0]
    return LauncherEnvironment(
        *(name, rank, size, local.index(rank), len(local), address, port, 1, job_id),
        f"the list of addresses in {variable}",
    )


def _parse_slurm(env: Env) -> LauncherEnvironment:
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    size = number(env, size_name, 1)
    rank = rank_below(env, ("SLURM_PROCID",), size, size_name)
    local = same(env, ("SLURM_LOCALID",))
    if size == 1:
        return LauncherEnvironment("slurm", rank, size, local, 1)
    listed = env.get("SLURM_STEP_NODELIST", "")
    if not listed:
        raise ValueError("SLURM_STEP_NODELIST is not set; it must list the hosts of the step")
    nodes = expand_nodes(listed, "SLURM_STEP_NODELIST")
    parts = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    job_id = ".".join(env.get(part, "") for part in parts)
    address, port, num_ports = main_address(env, "Slurm", nodes[0], job_id)
    local_size = size if len(nodes) == 1 else None
    return LauncherEnvironment(
        *("slurm", rank, size, local, local_size, address, port, num_ports, job_id),
        ", ".join(parts),
    )


_MPI_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_MPI_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE")
_MPI_LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMIX_LOCAL_RANK")
_MPI_LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMIX_LOCAL_SIZE")
_MPI_JOB_ID = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")


def _parse_mpi(env: Env) -> LauncherEnvironment:
    size = required(env, _MPI_SIZE, 1)
    size_name = next(name for name in _MPI_SIZE if name in env)
    rank = rank_below(env, _MPI_RANK, size, size_name)
    local = same(env, _MPI_LOCAL_RANK), same(env, _MPI_LOCAL_SIZE, 1)
    if size == 1:
        return LauncherEnvironment("mpi", rank, size, *local)
    source = next((name for name in _MPI_JOB_ID if env.get(name)), "")
    job_id = env[source] if source else ""
    is_one_host = local[1] == size
    if is_one_host and not job_id:
        job_id = launching_process()
    first = _LOCALHOST if is_one_host else first_host(env)
    address, port, num_ports = main_address(env, "MPI", first, job_id)
    return LauncherEnvironment("mpi", rank, size, *local, address, port, num_ports, job_id, source)


def _parse_keras(env: Env) -> LauncherEnvironment:
    listed = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
    addresses = [
        listed_address.strip()
        for listed_address in env.get(listed, "").split(",")
        if listed_address.strip()
    ]
    if not addresses:
        raise ValueError(f"{listed} must list host:port of the processes, separated by commas")
    size_name, rank_name = "KERAS_DISTRIBUTION_NUM_PROCESSES", "KERAS_DISTRIBUTION_PROCESS_ID"
    size = number(env, size_name, 1) if size_name in env else len(addresses)
    if len(addresses) not in (1, size):
        raise ValueError(
            f"{size_name}={size}, but {listed} lists {len(addresses)} addresses: it must list one"
            " (that of process 0) or all"
        )
    rank = rank_below(env, (rank_name,), size, size_name)
    if len(addresses) == size:
        return _of_addresses("keras", rank, addresses, listed)
    address, port = split_address(addresses[0], listed)
    return LauncherEnvironment(
        *("keras", rank, size),
        address=address,
        port=port,
        job_id=addresses[0],
        job_id_source=listed,
    )


# Detection.


def _is_tf_config(env: Env) -> bool:
    # An empty cluster is TensorFlow's way to say that there is none.
    return bool(_tf_config(env).get("cluster"))


def _is_slurm(env: Env) -> bool:
    """Returns whether `srun` has started this process, rather than an MPI program within a job.

    Under `mpirun`, variables of Slurm are those of the daemon that MPI has started by `srun`.
    """
    if not {"SLURM_PROCID", "SLURM_STEP_NODELIST"} <= env.keys():
        return False
    return not any(name in env for name in ("OMPI_COMM_WORLD_RANK", "MPI_LOCALNRANKS"))


def _is_mpi(env: Env) -> bool:
    return any(name in env for name in _MPI_RANK)


def _is_keras(env: Env) -> bool:
    names = ("PROCESS_ID", "JOB_ADDRESSES", "NUM_PROCESSES")
    return any(f"KERAS_DISTRIBUTION_{name}" in env for name in names)


@dataclass(frozen=True)
class _Parser:
    """Parser of one environment.

    Attributes:
        applies: returns whether the environment's variables are there.
        parse: returns the place of this process.
    """

    applies: Callable[[Env], bool]
    parse: Callable[[Env], LauncherEnvironment]


# In the order of detection.
_PARSERS: dict[str, _Parser] = {
    "torchrun": _Parser(lambda env: {"RANK", "WORLD_SIZE"} <= env.keys(), _parse_torchrun),
    "tf-config": _Parser(_is_tf_config, _parse_tf_config),
    "slurm": _Parser(_is_slurm, _parse_slurm),
    "mpi": _Parser(_is_mpi, _parse_mpi),
    "keras": _Parser(_is_keras, _parse_keras),
}
