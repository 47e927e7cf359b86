"""Checks of a job before it starts: slots of its hosts, and transports of the installed Horovod.

Horovod's launcher finds its transports by starting TensorFlow twice, for MPI and for Gloo.
"""

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_DEADLINE_SECONDS = 60.0
# Runs in another process, so that the launcher keeps neither the large libraries nor their output.
_ASK = """
import ctypes, json, sys
*needed, library = sys.argv[1:]
for path in needed:
    ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
horovod = ctypes.CDLL(library)
found = {"gloo": horovod.horovod_gloo_built(), "mpi": horovod.horovod_mpi_built()}
print(json.dumps({name: bool(built) for name, built in found.items()}))
"""
# Horovod's formats.
_HOST = re.compile(r"\s*[\w.-]+:([0-9]+)\s*")
_LINE = re.compile(r"\s*[\w.-]+\s+slots=([0-9]+)\s*")


@dataclass(frozen=True)
class HorovodBuildInfo:
    """Transports over which Horovod can move data."""

    gloo: bool
    mpi: bool


def built_with() -> HorovodBuildInfo | None:
    """Returns what Horovod's TensorFlow library reports; None if it cannot be loaded."""
    folders = {name: _folder(name) for name in ("tensorflow", "horovod")}
    tensorflow, horovod = folders["tensorflow"], folders["horovod"]
    if tensorflow is None or horovod is None:
        return None
    libraries = sorted((horovod / "tensorflow").glob("mpi_lib*.so"))
    if len(libraries) != 1:
        return None
    # The framework first: the other library is linked with it.
    needed = sorted(tensorflow.glob("libtensorflow_*.so.*"), key=lambda path: "_cc." in path.name)
    command = [sys.executable, "-c", _ASK, *map(str, needed), str(libraries[0])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DEADLINE_SECONDS, check=True
        )
        return HorovodBuildInfo(**json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, OSError, ValueError, IndexError, TypeError):
        return None


def _folder(package: str) -> Path | None:
    """Returns the folder of an installed package, without importing the package."""
    found = importlib.util.find_spec(package)
    locations = found.submodule_search_locations if found is not None else None
    return Path(locations[0]) if locations else None


def check_hosts(
    hosts: str | None, hostfile: str | None, num_processes: int | None, elastic: bool = False
) -> None:
    """Rejects invalid hosts, and more processes than the hosts have slots.

    Args:
        hosts: value of `-H`, such as "host1:2,host2:2"; None if not passed.
        hostfile: value of `--hostfile`, a file with lines such as "host1 slots=2"; None if not
            passed.
        num_processes: value of `-np`; None if not passed.
        elastic: whether hosts may join later, so that there may be too few slots at first.

    Raises:
        OSError: the file cannot be read.
        ValueError: a host, a line or the number of processes is invalid; names it.
    """
    if hosts:
        named, slots = f"-H {hosts}", _slots_of_hosts(hosts)
    elif hostfile:
        named, slots = f"hostfile {hostfile!r}", _slots_of_file(Path(hostfile))
    else:
        return
    if num_processes is not None and num_processes > slots and not elastic:
        raise ValueError(f"-np {num_processes} is more than {named} has slots, {slots}")


def _slots_of_hosts(hosts: str) -> int:
    total = 0
    for host in hosts.split(","):
        found = _HOST.fullmatch(host)
        if not found:
            raise ValueError(f"-H must be HOST:SLOTS, separated by commas, got {host!r:.80}")
        total += int(found[1])
    return total


def _slots_of_file(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"hostfile {str(path)!r} is not a text file") from None
    total = 0
    for number, line in enumerate(lines, start=1):
        found = _LINE.fullmatch(line)
        if not found:
            raise ValueError(
                f"hostfile {str(path)!r}: line {number} must be HOST slots=NUMBER, got {line!r:.80}"
            )
        total += int(found[1])
    return total
