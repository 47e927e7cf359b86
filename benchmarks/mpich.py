"""Programs and environments of an MPICH with a Horovod, as `tools/build_horovod.py` makes it."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

# In the folder of an MPICH.
MPIEXEC = "bin/mpiexec.hydra"


class Host(Protocol):
    """Network namespace with cores of its own, as in `cluster.py`."""

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def cores(self) -> frozenset[int]: ...


def enter_script(hosts: Sequence[Host]) -> str:
    """Returns a script that mpiexec calls as it would call ssh: options, host, command."""
    cases = "\n".join(
        f"  {host.name}) exec ip netns exec {host.namespace}"
        f' taskset -c {",".join(map(str, sorted(host.cores)))} sh -c "$*" ;;'
        for host in hosts
    )
    return (
        f'#!/bin/sh\nwhile [ "${{1#-}}" != "$1" ]; do shift; done\nhost=$1; shift\n'
        f"case $host in\n{cases}\nesac\n"
    )


def mpiexec(mpich: Path, enter: Path, interface: str, hosts: Sequence[Host]) -> list[str]:
    """Returns the command that starts one worker per host, without the worker's own command."""
    return [
        str(mpich / MPIEXEC),
        *("-launcher", "ssh", "-launcher-exec", str(enter), "-iface", interface),
        *("-hosts", ",".join(host.name for host in hosts), "-ppn", "1"),
        *("-n", str(len(hosts))),
    ]


def environment(mpich: Path, env: dict[str, str]) -> dict[str, str]:
    """Returns the environment with which a worker finds and uses MPICH and its Horovod."""
    packages = mpich / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    first = {
        "PATH": mpich / "bin",
        "LD_LIBRARY_PATH": mpich / "lib",
        "PYTHONPATH": packages / "site-packages",
    }
    found = {
        name: os.pathsep.join(filter(None, (str(path), env.get(name, ""))))
        for name, path in first.items()
    }
    return found | {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}


def environment_on_hosts(mpich: Path, env: dict[str, str]) -> dict[str, str]:
    """Returns `environment` for hosts that have nothing but TCP on eth0 between them."""
    return environment(mpich, env) | {
        "HOROVOD_LOCAL_RANK": "0",
        "TF_LIBRA_INTERFACE": "eth0",
        "MPIR_CVAR_NOLOCAL": "1",
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "eth0",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "eth0",
    }
