"""What a job runs on, for whoever looks at its records later."""

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
    """The versions of Python and of the packages that matter, each once, as far as installed."""
    found = {"Python": platform.python_version()}
    for package, name in _PACKAGES:
        try:
            found.setdefault(name, metadata.version(package))
        except metadata.PackageNotFoundError:
            continue
    return tuple(f"{name} {version}" for name, version in found.items())
