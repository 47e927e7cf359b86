"""Startup of Python programs that import TensorFlow in half of the time.

Tests start more than a hundred processes that do, and three things take longest:

- `import tensorflow` imports Keras, which imports matplotlib and scikit-learn for its own plots and
  wrappers. Keras works without both. Every other module can still import them.
- The garbage collector looks at all that was imported whenever some hundred objects are new. It is
  to wait for more.
- It looks at all again, several times, when a process ends.

Python imports a module of this name at startup. `tests/conftest.py` puts this folder on PYTHONPATH.
"""

import atexit
import gc
import os
import sys
from typing import Any

# Environment variable with the path of the servers of workers, tests/forkserver.py.
FORK_SERVER = "FORK_SERVER_OF_TESTS"

# Objects until a collection of the youngest, and collections until one of the older ones.
_GC_THRESHOLD = (50_000, 20, 50)
_OPTIONAL = frozenset(("matplotlib", "sklearn"))


class KerasFinder:
    """A finder that hides optional packages from Keras alone."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raises ModuleNotFoundError if Keras imports an optional package."""
        if name in _OPTIONAL and _importer().startswith("keras."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _importer() -> str:
    """Returns the name of the module whose import statement runs."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib."):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


sys.meta_path.insert(0, KerasFinder())
gc.set_threshold(*_GC_THRESHOLD)
atexit.register(gc.freeze)  # registered first: runs last
if FORK_SERVER in os.environ and sys.orig_argv[1:3] == ["-m", "benchmarks.jobs.worker"]:
    from benchmark_worker import hand_over_to_fork

    hand_over_to_fork(os.environ[FORK_SERVER])
