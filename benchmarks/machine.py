"""Machine, system and library versions of a measurement, and the shares of its cores."""

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """This machine: processor, usable cores, kernel, memory, and how busy it is just now."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "load_average": os.getloadavg()[0],
    }


def congestion_control() -> str:
    """Returns TCP's default where this process runs; each network namespace has its own."""
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def versions() -> dict[str, str]:
    """Versions of what takes part in a training step."""
    packages = ["keras", "numpy", "tf-libra"]
    if importlib.util.find_spec("horovod") is not None:
        packages.insert(0, "horovod")
    # tensorflow, tensorflow-cpu: the module has the same name. To import it would take seconds.
    [tensorflow, *_] = importlib.metadata.packages_distributions()["tensorflow"]
    return {
        "python": platform.python_version(),
        "tensorflow": importlib.metadata.version(tensorflow),
        **{package: importlib.metadata.version(package) for package in packages},
    }


def shares(num_hosts: int) -> list[frozenset[int]]:
    """This process's cores, dealt out to hosts: an equal number to each, one at least."""
    cores = sorted(os.sched_getaffinity(0))
    each = max(len(cores) // num_hosts, 1)
    return [
        frozenset(cores[(i * each + k) % len(cores)] for k in range(each)) for i in range(num_hosts)
    ]
