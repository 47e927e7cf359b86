"""Startup of Python without the optional packages that Keras imports if they are there.

`import tensorflow` imports Keras, which imports matplotlib and scikit-learn for its own plots and
wrappers. That is a third of what the import computes, and tests start more than a hundred processes
that do it. Keras works without both. Every other module can still import them.

Python imports a module of this name at startup. `tests/conftest.py` puts this folder on PYTHONPATH.
"""

import sys
from typing import Any

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
