"""Discovery of the package's optional systems, folders that register themselves with the core."""

import functools
import importlib
import importlib.util

# A system may be absent. The core imports no other module of it.
SYSTEMS = ("model_parallel", "background_jobs")


@functools.cache
def load_systems() -> None:
    """Imports the module `registration` of every system that is present, once."""
    for system in SYSTEMS:
        spec = importlib.util.find_spec(f"tf_libra.{system}")
        if spec is not None and spec.has_location:  # a folder without modules has none
            importlib.import_module(f"tf_libra.{system}.registration")
