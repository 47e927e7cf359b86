"""Hosts of launchers: node lists of Slurm, such as `node[01-03,7],login`, and host files of MPI."""

import os
import re
from pathlib import Path

from tf_libra.coordination.launcher_variables import Env

# A longer list is an error of the variable, not a cluster.
_MAX_NODES = 1 << 16
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
# Files whose first line names the first host, which runs rank 0.
_HOST_FILES = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)
# Programs that start the ranks of one host. All ranks of the host descend from one of them.
_PROGRAMS = ("mpirun", "mpiexec", "orted", "prted", "prterun", "hydra")


def expand_nodes(text: str, name: str) -> list[str]:
    """Returns the host names of a list in Slurm's form, in order.

    Args:
        text: the list. A host may have several bracketed parts: `rack[0-1]n[1-2]`.
        name: variable that contains the list, for the error.

    Raises:
        ValueError: the list is empty, a bracket or a range is invalid, or there are too many hosts.
    """
    nodes: list[str] = []
    for part in _split(text, name):
        nodes += _expand(part, text, name, _MAX_NODES - len(nodes))
    return nodes


def _split(text: str, name: str) -> list[str]:
    """Splits a list at the commas outside of brackets."""
    parts = re.findall(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+", text.strip())
    if not parts or ",".join(parts) != text.strip():
        raise _invalid(text, name)
    return parts


def _expand(part: str, text: str, name: str, limit: int) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part] if limit > 0 else _too_many(name)
    inside, _, tail = rest.partition("]")
    numbers: list[str] = []
    for piece in inside.split(","):
        found = _RANGE.fullmatch(piece)
        if found is None:
            raise _invalid(text, name)
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise _invalid(text, name)
        if last - first >= limit:
            _too_many(name)
        width = len(found[1])  # leading zeros are part of the names
        numbers += [f"{number:0{width}}" for number in range(first, last + 1)]
    tails = _expand(tail, text, name, limit) if tail else [""]
    if len(numbers) * len(tails) > limit:
        _too_many(name)
    return [f"{head}{number}{end}" for number in numbers for end in tails]


def _invalid(text: str, name: str) -> ValueError:
    return ValueError(f"{name} must list hosts such as node[01-03,7], got {text!r:.200}")


def _too_many(name: str) -> list[str]:
    raise ValueError(f"{name} must list at most {_MAX_NODES} hosts")


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
