#!/usr/bin/env python3
"""Builds and installs Horovod with Gloo against the TensorFlow of this environment.

Horovod's last release looks for XLA headers where current TensorFlow wheels no longer have
them. This step forwards them, builds the release that pip downloads, unchanged, and installs it:

    python tools/build_horovod.py

It needs a C++ compiler, make and the headers of Python; the build tools that it gets through pip
stay in a temporary folder. It does nothing where Horovod already works with this TensorFlow. The
wheel is kept under a key of its own, because pip's cache does not know which TensorFlow a wheel
was built for.

    python tools/build_horovod.py --mpich build/horovod-mpich

leaves the environment's Horovod alone, and puts MPICH and a Horovod that speaks MPI into a folder
of their own, which `benchmarks.cluster` knows how to use.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HOROVOD = "0.28.1"
MPICH = "5.0.2"
SUPPORTED = ("2.18", "2.21")
# cmake 4 rejects the policies of the Gloo in Horovod's release, setuptools 81 lacks pkg_resources.
# The others are what Horovod's setup.py asks for before it builds.
BUILD_TOOLS = ("cmake<4", "setuptools<81", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml")
SETTINGS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
}
MPI_SETTINGS = {"HOROVOD_WITH_MPI": "1", "HOROVOD_WITHOUT_MPI": ""}
# What Horovod's xla_mpi_ops.cc includes, and where newer wheels have it, all below include/.
FORWARDED = {
    "tensorflow/compiler/xla/client/xla_builder.h": "xla/hlo/builder/xla_builder.h",
    "tensorflow/compiler/xla/service/custom_call_target_registry.h": (
        "xla/service/custom_call_target_registry.h"
    ),
    "tensorflow/compiler/xla/service/hlo.pb.h": "xla/service/hlo.pb.h",
    "tensorflow/compiler/xla/shape.h": "xla/shape.h",
    "tensorflow/compiler/xla/xla_data.pb.h": "xla/xla_data.pb.h",
}
# Roots that headers of TensorFlow include from, where a wheel has them.
EXTERNAL = (
    "external/highwayhash",
    "external/farmhash_archive/src",
    "external/llvm-project/llvm/include",
    "external/llvm-project/mlir/include",
)
CHECK = """
import horovod.tensorflow as hvd
raise SystemExit(0 if hvd.gloo_built() else "Horovod was built without Gloo")
"""
CHECK_MPI = """
import horovod.tensorflow as hvd
raise SystemExit(0 if hvd.mpi_built() else "Horovod was built without MPI")
"""


class BuildError(Exception):
    """Failure of a build, in one line for the user."""


@dataclass(frozen=True)
class TensorFlow:
    """The installed TensorFlow."""

    version: str
    include: Path


def find_tensorflow() -> TensorFlow:
    """Finds TensorFlow without importing it.

    Raises:
      BuildError: there is none, or a version that Horovod is not known to build on.
    """
    spec = importlib.util.find_spec("tensorflow")
    names = importlib.metadata.packages_distributions().get("tensorflow") if spec else None
    supported = " or ".join(f"{version}.x" for version in SUPPORTED)
    if spec is None or not spec.submodule_search_locations or not names:
        raise BuildError(f"no TensorFlow in {sys.prefix}; install TensorFlow {supported} first")
    version = importlib.metadata.version(names[0])
    if ".".join(version.split(".")[:2]) not in SUPPORTED:
        raise BuildError(f"TensorFlow {version} is not supported; install TensorFlow {supported}")
    return TensorFlow(version, Path(spec.submodule_search_locations[0]) / "include")


def built_for() -> str | None:
    """The TensorFlow version that the installed Horovod was built for, None if there is none."""
    try:
        distribution = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None
    metadata = Path(str(distribution.locate_file("horovod/metadata.json")))
    if distribution.version != HOROVOD or not metadata.exists():
        return None
    version = json.loads(metadata.read_text()).get("tensorflow")
    return str(version) if version else None


def why_not_working(check: str = CHECK, env: dict[str, str] | None = None) -> str | None:
    """Imports Horovod in a process of its own: None if it works, else the reason."""
    done = subprocess.run(
        [sys.executable, "-c", check], env=os.environ | (env or {}), capture_output=True, text=True
    )
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


def forwarding_headers(include: Path, folder: Path) -> Iterator[str]:
    """Writes to `folder` a one-line header for each that Horovod wants and `include` lacks.

    Yields:
      The paths that were written, relative to `folder`.

    Raises:
      BuildError: the header is not at its new place either.
    """
    for wanted, actual in FORWARDED.items():
        if (include / wanted).exists():
            continue
        if not (include / actual).exists():
            raise BuildError(f"TensorFlow's headers have neither {wanted} nor {actual}")
        header = folder / wanted
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(f'#include "{actual}"\n')
        yield wanted


def check_compiler() -> None:
    """Raises BuildError if something is missing that pip cannot bring."""
    missing = [tool for tool in (os.environ.get("CXX", "g++"), "make") if not shutil.which(tool)]
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        missing.append("Python.h (python3-dev)")
    if missing:
        raise BuildError(f"missing on this machine: {', '.join(missing)}")


def pip(*arguments: str, env: dict[str, str] | None = None) -> None:
    """Runs this environment's pip, and shows what it printed if it failed."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise BuildError(f"`pip {' '.join(arguments)}` failed, see above")


def build_wheel(tensorflow: TensorFlow, wheels: Path, mpich: Path | None = None) -> Path:
    """Builds Horovod for `tensorflow`, and leaves the wheel in `wheels`.

    Args:
      tensorflow: what to build against.
      wheels: folder for the wheel.
      mpich: where MPICH is installed, for a Horovod that speaks MPI; None for one that does not.
    """
    check_compiler()
    with tempfile.TemporaryDirectory(prefix="build-horovod-") as scratch_name:
        scratch = Path(scratch_name)
        tools, headers, built = scratch / "tools", scratch / "include", scratch / "wheels"
        pip("install", "--quiet", "--target", str(tools), *BUILD_TOOLS)
        for header in forwarding_headers(tensorflow.include, headers):
            print(f"build_horovod: forwarding {header}", flush=True)
        external = [tensorflow.include / folder for folder in EXTERNAL]
        search = [str(path) for path in (headers, *external) if path.is_dir()]

        programs = [tools / "bin", Path(sys.executable).parent]
        if mpich is not None:
            programs.insert(0, mpich / "bin")

        def prepended(name: str, *values: str) -> str:
            return os.pathsep.join(filter(None, (*values, os.environ.get(name, ""))))

        env = {
            **os.environ,
            **SETTINGS,
            **(MPI_SETTINGS if mpich else {}),
            "PATH": prepended("PATH", *map(str, programs)),
            "PYTHONPATH": prepended("PYTHONPATH", str(tools)),
            "CPLUS_INCLUDE_PATH": prepended("CPLUS_INCLUDE_PATH", *search),
            "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
        }
        options = ("--no-deps", "--no-build-isolation", "--no-cache-dir", "--no-binary", "horovod")
        pip("wheel", *options, "--wheel-dir", str(built), f"horovod=={HOROVOD}", env=env)
        [wheel] = built.glob("*.whl")
        wheels.mkdir(parents=True, exist_ok=True)
        # Copied next to its place, then renamed: another build may be reading it.
        fresh = Path(shutil.copy(wheel, wheels / f"{wheel.name}.{os.getpid()}"))
        return fresh.replace(wheels / wheel.name)


def install(wheel: Path) -> str | None:
    """Installs `wheel` with what it depends on; None if it then works, else the reason."""
    pip("install", "--quiet", "--no-deps", "--force-reinstall", str(wheel))
    pip("install", "--quiet", str(wheel))
    return why_not_working()


def default_cache() -> Path:
    """Returns the default folder of the wheels."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tf-libra"


def run(cache: Path) -> str:
    """Makes Horovod work in this environment, and says how it came there."""
    tensorflow = find_tensorflow()
    name = f"Horovod {HOROVOD} for TensorFlow {tensorflow.version}"
    if built_for() == tensorflow.version and why_not_working() is None:
        return f"{name} is installed and works"
    tag = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
    wheels = cache / f"horovod-{HOROVOD}-tensorflow-{tensorflow.version}-{tag}"
    for wheel in wheels.glob("*.whl"):
        trouble = install(wheel)
        if trouble is None:
            return f"{name} installed from {wheel}"
        print(f"build_horovod: the wheel kept in {wheels} does not work here: {trouble}")
    print(f"build_horovod: building {name}; this takes minutes", flush=True)
    wheel = build_wheel(tensorflow, wheels)
    trouble = install(wheel)
    if trouble is not None:
        raise BuildError(f"{name} was built but does not work: {trouble}")
    return f"{name} built and installed; the wheel is kept in {wheels}"


def mpich_environment(folder: Path) -> dict[str, str]:
    """Returns the environment that finds MPICH and its Horovod in `folder` before others."""
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    first = {
        "PATH": folder / "bin",
        "LD_LIBRARY_PATH": folder / "lib",
        "PYTHONPATH": packages / "site-packages",
    }
    return {
        name: os.pathsep.join(filter(None, (str(path), os.environ.get(name, ""))))
        for name, path in first.items()
    }


def run_mpich(folder: Path, cache: Path) -> str:
    """Puts MPICH and a Horovod for it into `folder`, and says how it came there."""
    tensorflow = find_tensorflow()
    name = f"Horovod {HOROVOD} on MPICH for TensorFlow {tensorflow.version}"
    if why_not_working(CHECK_MPI, mpich_environment(folder)) is None:
        return f"{name} is in {folder} and works"
    into = ("install", "--quiet", "--no-deps", "--ignore-installed", "--prefix", str(folder))
    pip(*into, f"mpich=={MPICH}")
    tag = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
    wheels = cache / f"horovod-{HOROVOD}-mpich-{MPICH}-tensorflow-{tensorflow.version}-{tag}"
    built_wheels = list(wheels.glob("*.whl"))
    if not built_wheels:
        print(f"build_horovod: building {name}; this takes minutes", flush=True)
    wheel = built_wheels[0] if built_wheels else build_wheel(tensorflow, wheels, folder.absolute())
    pip(*into, str(wheel))
    trouble = why_not_working(CHECK_MPI, mpich_environment(folder))
    if trouble is not None:
        raise BuildError(f"{name} does not work: {trouble}; remove {wheels} to build it again")
    return f"{name} is in {folder}; the wheel is kept in {wheels}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--cache-dir", type=Path, default=default_cache(), help="where built wheels are kept"
    )
    parser.add_argument(
        "--mpich", type=Path, metavar="FOLDER", help="put MPICH and a Horovod for it here instead"
    )
    arguments = parser.parse_args()
    try:
        if arguments.mpich is None:
            print(f"build_horovod: {run(arguments.cache_dir)}")
        else:
            print(f"build_horovod: {run_mpich(arguments.mpich.absolute(), arguments.cache_dir)}")
    except (BuildError, OSError) as error:
        raise SystemExit(f"build_horovod: {error}") from error


if __name__ == "__main__":
    main()
