"""Transports that Horovod was built with, read from its library.

Horovod's launcher finds them by starting TensorFlow twice, for MPI and for Gloo.
"""

import importlib.util
import json
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
    places = found.submodule_search_locations if found is not None else None
    return Path(places[0]) if places else None
