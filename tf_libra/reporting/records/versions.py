"""Versions that a job runs on."""

import platform
from importlib import metadata

_PACKAGES = (
    ("tf-libra", "TF-Libra"),
    ("tensorflow", "TensorFlow"),
    ("tensorflow-cpu", "TensorFlow"),
    ("keras", "Keras"),
    ("horovod", "Horovod"),
)


def versions() -> tuple[str, ...]:
    """Return the versions of Python and of the installed relevant packages."""
    found = {"Python": platform.python_version()}
    for package, name in _PACKAGES:
        try:
            found.setdefault(name, metadata.version(package))
        except metadata.PackageNotFoundError:
            continue
    return tuple(f"{name} {version}" for name, version in found.items())
