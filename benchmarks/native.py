"""Programs of benchmarks that are C++ alone: one source of this folder, and the lanes."""

import functools
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def folder_of(name: str) -> Path:
    """Returns the folder, made if missing, in which a program and its dependencies are built."""
    folder = ROOT / "build" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def build(name: str, options: tuple[str, ...] = (), root: Path | None = None) -> Path:
    """Compiles `benchmarks/NAME.cc`, and of the lanes what has changed; returns the program.

    Once in a process: what changes meanwhile is not looked at.

    Args:
        name: of the source.
        options: of the compiler, besides.
        root: a checkout whose lanes are compiled and linked; None: the lanes of the extension.
            Checkouts that are compared need the same flags.
    """
    program = folder_of(name) / (name if root is None or root == ROOT else f"{name}-{root.name}")
    source = ROOT / "benchmarks" / f"{name}.cc"
    command: list[str | Path] = ["g++", "-std=c++17", "-O3"]
    command += [f"-I{root or ROOT}", f"-I{ROOT}", source]
    command += [*(extension_lanes() if root is None else lanes(root)), *options]
    subprocess.run([*command, "-pthread", "-o", program], check=True)
    return program


def checkout(revision: str) -> Path:
    """Writes the lanes of a commit to a folder below `build/` and returns the folder."""
    command = ["git", "rev-parse", "--short", f"{revision}^{{commit}}"]
    commit = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    folder = folder_of("against") / commit.strip()
    folder.mkdir(exist_ok=True)
    archive = ["git", "archive", commit.strip(), "Makefile", "ops"]
    files = subprocess.run(archive, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "--extract", "--directory", folder], check=True, input=files)
    return folder


def extension_lanes() -> list[Path]:
    """Returns the objects of `ops/lanes` that the extension is linked with, brought up to date."""
    command = [sys.executable, "setup.py", "--quiet", "cc_lanes"]
    done = subprocess.run(
        command, cwd=ROOT, env=_environment(), check=True, stdout=subprocess.PIPE, text=True
    )
    return [ROOT / line for line in done.stdout.splitlines() if line.endswith(".o")]


def lanes(root: Path) -> list[Path]:
    """Returns the objects of `ops/lanes` of a checkout, brought up to date."""
    jobs = len(os.sched_getaffinity(0))
    command = ["make", "--silent", f"-j{jobs}", "cc-lanes"]
    subprocess.run(command, cwd=root, env=_environment(), check=True)
    return [root / "build" / "cc" / "plain" / f"{unit}.o" for unit in _units(root)]


def _units(root: Path) -> list[str]:
    paths = sorted((root / "ops" / "lanes").glob("*.cc"))
    return [path.stem for path in paths if not path.name.endswith("_test.cc")]


def _environment() -> dict[str, str]:
    # The caller may itself run under make, whose job server is not ours to use.
    return {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
