"""First host of an MPI job and the program that started a process: no variable tells them."""

import os
import re
from pathlib import Path

from tf_libra.coordination.launcher_variables import Env

# Files whose first line names the first host, which runs rank 0.
_HOST_FILES = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)
# Programs that start the ranks of one host. All ranks of the host descend from one of them.
_PROGRAMS = ("mpirun", "mpiexec", "orted", "prted", "prterun", "hydra")


def first_host(env: Env) -> str:
    """Returns the first host of the host file that MPI's variables name; "" if none is found."""
    for name in _HOST_FILES:
        try:
            lines = Path(env[name]).read_text().splitlines() if env.get(name) else []
        except (OSError, UnicodeDecodeError):  # the file may exist on the launcher's host alone
            continue
        for line in lines:
            host = re.split(r"[\s:]", line.partition("#")[0].strip())[0]
            if host:
                return host
    return ""


def launching_process() -> str:
    """Returns the number of the MPI program that this process descends from; "" if unknown."""
    pid = os.getppid()
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return ""
        program = stat[stat.index("(") + 1 : stat.rindex(")")]
        if program.startswith(_PROGRAMS):
            return str(pid)
        pid = int(stat[stat.rindex(")") + 2 :].split()[1])
    return ""
