"""Places of processes, from the variables of every launcher."""

import json
from collections.abc import Mapping

import pytest

from tf_libra.coordination.launcher_environment import (
    LauncherEnvironment,
    detect,
    disagreements,
    launched_rank,
)

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "fd00::1",
    "MASTER_PORT": "29500",
}
CLUSTER = {"chief": ["a:1"], "worker": ["b:2", "[fd00::1]:3"], "evaluator": ["c:4"]}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-09]",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-7@1",
    "PMIX_RANK": "1",
}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
KERAS = {
    "KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.1:1234, 10.0.0.2:2345",
    "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
    "KERAS_DISTRIBUTION_PROCESS_ID": "1",
}


def tf_config(kind: str, index: object, cluster: object = CLUSTER) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def described(found: LauncherEnvironment | None) -> tuple[object, ...]:
    assert found is not None
    return (
        found.name,
        (found.rank, found.world_size),
        (found.local_rank, found.local_world_size),
        found.address,
        None if found.num_ports > 1 else found.port,
    )


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (TORCHRUN, ("torchrun", (3, 4), (1, 2), "fd00::1", 29500)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ("torchrun", (0, 1), (None, None), "", 0)),
        (TORCHRUN | SLURM | OPEN_MPI, ("torchrun", (3, 4), (1, 2), "fd00::1", 29500)),
        (
            TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"},
            ("torchrun", (3, 4), (1, 2), "fd00::1", None),
        ),
        (tf_config("chief", 0), ("tf-config", (0, 3), (0, 1), "a", 1)),
        (tf_config("worker", 1), ("tf-config", (2, 3), (0, 1), "a", 1)),
        (tf_config("worker", "1"), ("tf-config", (2, 3), (0, 1), "a", 1)),
        (tf_config("evaluator", 0), ("tf-config", (0, 1), (None, None), "", 0)),
        (tf_config("worker", 1, CLUSTER | {"ps": ["d:5"]}), ("tf-config", (2, 3), (0, 1), "a", 1)),
        (
            tf_config("worker", 1, {"worker": ["h:1", "h:2"]}),
            ("tf-config", (1, 2), (1, 2), "h", 1),
        ),
        (SLURM, ("slurm", (5, 6), (1, None), "gpu07", None)),
        (
            SLURM | {"MASTER_ADDR": "head", "MASTER_PORT": "7"},
            ("slurm", (5, 6), (1, None), "head", 7),
        ),
        (SLURM | {"SLURM_STEP_NODELIST": "gpu1"}, ("slurm", (5, 6), (1, 6), "gpu1", None)),
        (
            SLURM | {"SLURM_STEP_NODELIST": "r[0-1]n[07,9]-ib,login", "PMIX_RANK": "5"},
            ("slurm", (5, 6), (1, None), "r0n07-ib", None),
        ),
        # As in scripts of sbatch, which leave the rank to srun.
        (
            SLURM | {"WORLD_SIZE": "6", "MASTER_ADDR": "gpu07", "MASTER_PORT": "7"},
            ("slurm", (5, 6), (1, None), "gpu07", 7),
        ),
        (OPEN_MPI, ("mpi", (1, 2), (1, 2), "127.0.0.1", None)),
        (OPEN_MPI | SLURM, ("mpi", (1, 2), (1, 2), "127.0.0.1", None)),
        (MPICH | {"MASTER_ADDR": "[fd00::2]"}, ("mpi", (2, 4), (0, 2), "fd00::2", None)),
        (KERAS, ("keras", (1, 2), (0, 1), "10.0.0.1", 1234)),
        (
            KERAS | {"KERAS_DISTRIBUTION_JOB_ADDRESSES": "h:9"},
            ("keras", (1, 2), (None, None), "h", 9),
        ),
        (TORCHRUN | {"TF_LIBRA_LAUNCHER": "none"}, ("none", (0, 1), (None, None), "", 0)),
        (
            TORCHRUN | KERAS | {"TF_LIBRA_LAUNCHER": "keras"},
            ("keras", (1, 2), (0, 1), "10.0.0.1", 1234),
        ),
    ],
)
def test_variables_tell_the_place(env: Mapping[str, str], expected: tuple[object, ...]) -> None:
    assert described(detect(env)) == expected


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"RANK": "1"},
        {"MASTER_ADDR": "h", "MASTER_PORT": "1"},
        {"WORLD_SIZE": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
        {"TF_CONFIG": "{}"},
        {"TF_CONFIG": '{"cluster": {}, "task": {"type": "worker", "index": 0}}'},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # the batch script itself
        TORCHRUN | {"HOROVOD_RANK": "0"},
        TORCHRUN | {"TF_LIBRA_LAUNCHER": "horovod"},
    ],
)
def test_other_processes_were_started_by_no_launcher(env: Mapping[str, str]) -> None:
    assert detect(env) is None


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        ({"TF_LIBRA_LAUNCHER": "ray"}, ["TF_LIBRA_LAUNCHER", "'ray'", "torchrun", "slurm"]),
        ({"TF_LIBRA_LAUNCHER": "slurm"}, ["SLURM_NTASKS", "not set"]),
        (TORCHRUN | {"RANK": "one"}, ["RANK", "'one'", "0"]),
        (TORCHRUN | {"RANK": "4"}, ["RANK", "4", "0 to 3"]),
        (TORCHRUN | {"RANK": "-1"}, ["RANK", "'-1'"]),
        (TORCHRUN | {"RANK": "²"}, ["RANK", "'²'"]),
        (TORCHRUN | {"WORLD_SIZE": "0"}, ["WORLD_SIZE", "'0'", "1"]),
        (TORCHRUN | {"LOCAL_RANK": "2"}, ["local rank 2", "local size 2"]),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "5"}, ["local size 5", "world size 4"]),
        (TORCHRUN | {"MASTER_PORT": "70000"}, ["MASTER_PORT", "'70000'", "65535"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, ["MASTER_ADDR"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, ["MASTER_PORT"]),
        ({"RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, ["WORLD_SIZE", "RANK"]),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "h"}, ["WORLD_SIZE", "RANK"]),
        (TORCHRUN | {"MASTER_ADDR": "tcp://h"}, ["MASTER_ADDR", "'tcp://h'"]),
        (TORCHRUN | {"MASTER_ADDR": "h:29500"}, ["MASTER_ADDR", "'h:29500'"]),
        (TORCHRUN | {"MASTER_ADDR": "[::1]:29500"}, ["MASTER_ADDR", "'[::1]:29500'"]),
        (TORCHRUN | {"MASTER_ADDR": "h1,h2"}, ["MASTER_ADDR", "'h1,h2'"]),
        (TORCHRUN | {"MASTER_ADDR": " "}, ["MASTER_ADDR"]),
        ({"TF_CONFIG": "{"}, ["TF_CONFIG", "JSON"]),
        (tf_config("ps", 0, CLUSTER | {"ps": ["d:5"]}), ["TF_CONFIG", "'ps'", "worker"]),
        (tf_config("worker", 2), ["TF_CONFIG", "index", "2"]),
        (tf_config("worker", "x"), ["TF_CONFIG", "index", "'x'"]),
        (tf_config("master", 0), ["TF_CONFIG", "type", "master"]),
        (tf_config("worker", 0, {"worker": ["a", "b:1"]}), ["TF_CONFIG", "host:port", "'a'"]),
        (tf_config("worker", 0, {"worker": ["a:1", "a:1"]}), ["TF_CONFIG", "'a:1'"]),
        (tf_config("worker", 0, {"worker": "a:1"}), ["TF_CONFIG", "cluster"]),
        (SLURM | {"SLURM_PROCID": "6"}, ["SLURM_PROCID", "SLURM_NTASKS=6"]),
        (SLURM | {"SLURM_STEP_NODELIST": "gpu[7-"}, ["SLURM_STEP_NODELIST", "gpu[7-"]),
        (OPEN_MPI | {"PMIX_RANK": "0"}, ["OMPI_COMM_WORLD_RANK=1", "PMIX_RANK=0"]),
        (MPICH, ["MASTER_ADDR", "rank 0"]),  # on several hosts
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "prte"}, ["OMPI_COMM_WORLD_SIZE", "PMIX_SIZE"]),
        ({"KERAS_DISTRIBUTION_JOB_ADDRESSES": "h:1,h:2"}, ["PROCESS_ID", "not set"]),
        (KERAS | {"KERAS_DISTRIBUTION_NUM_PROCESSES": "3"}, ["NUM_PROCESSES=3", "2 addresses"]),
        (KERAS | {"KERAS_DISTRIBUTION_JOB_ADDRESSES": ""}, ["JOB_ADDRESSES"]),
    ],
)
def test_invalid_variables_are_named(env: Mapping[str, str], parts: list[str]) -> None:
    with pytest.raises(ValueError) as raised:
        detect(env)
    assert [part for part in parts if part not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("env", "others"),
    [
        (TORCHRUN, []),
        (TORCHRUN | {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "n"}, []),
        (TORCHRUN | {"PMI_RANK": "x", "PMI_SIZE": "4"}, []),  # an invalid one does not decide
        (TORCHRUN | OPEN_MPI, [("mpi", 1, 2)]),
        (TORCHRUN | tf_config("worker", 0), [("tf-config", 1, 3)]),
        # torchrun is started once per host.
        (TORCHRUN | SLURM | {"TORCHELASTIC_RUN_ID": "none"}, []),
        (OPEN_MPI | {"TF_LIBRA_LAUNCHER": "none"}, []),
    ],
)
def test_other_launchers_that_disagree_are_known(
    env: Mapping[str, str], others: list[tuple[str, int, int]]
) -> None:
    found = detect(env)
    assert found is not None
    named = [
        (disagreement.name, disagreement.rank, disagreement.world_size)
        for disagreement in disagreements(found, env)
    ]
    assert named == others


def test_all_ranks_of_a_slurm_step_use_the_same_ports() -> None:
    def ports(**env: str) -> tuple[int, int, str]:
        found = detect(SLURM | env)
        assert found is not None
        return found.port, found.num_ports, found.job_id

    assert ports() == ports(SLURM_PROCID="0", SLURM_LOCALID="0")
    assert ports()[2] != ports(SLURM_STEP_ID="3")[2]
    assert ports()[2] != ports(SLURM_RESTART_COUNT="1")[2]
    first, count, _ = ports()
    assert 20_000 <= first < first + count <= 32_768


def test_host_file_of_mpi_names_rank_0(tmp_path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# workers\n\nnode7 slots=2\nnode8 slots=2\n")
    found = detect(MPICH | {"HYDRA_HOST_FILE": str(hosts)})
    assert found is not None and found.address == "node7"
    with pytest.raises(ValueError, match="MASTER_ADDR"):
        detect(MPICH | {"HYDRA_HOST_FILE": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        ({}, 0),
        (TORCHRUN | {"RANK": "1"}, 1),
        ({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4"}, 3),
        ({"TF_LIBRA_LAUNCHER": "horovod", "HOROVOD_RANK": "3", "RANK": "1", "WORLD_SIZE": "2"}, 3),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_STEP_NODELIST": "n[1-2]"}, 5),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, 1),
        (TORCHRUN | {"RANK": "no"}, 0),
    ],
)
def test_rank_before_the_rendezvous_is_known(env: dict[str, str], rank: int) -> None:
    assert launched_rank(env) == rank
