"""Programs of benchmarks that are C++ alone: one source of this folder, and the lanes."""

import functools
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def folder_of(name: str) -> Path:
    """Returns the folder, made if missing, in which a program and its dependencies are built."""
    folder = ROOT / "build" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def build(name: str, options: tuple[str, ...] = (), root: Path = ROOT) -> Path:
    """Compiles `benchmarks/NAME.cc`, and of the lanes what has changed; returns the program.

    Once in a process: what changes meanwhile is not looked at.

    Args:
        name: of the source.
        options: of the compiler, besides.
        root: a checkout whose lanes the program is linked with.
    """
    program = folder_of(name) / (name if root == ROOT else f"{name}-{root.name}")
    source = ROOT / "benchmarks" / f"{name}.cc"
    command = ["g++", "-std=c++17", "-O3", f"-I{root}", f"-I{ROOT}", source]
    command += [*lanes(root), *options]
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


def lanes(root: Path = ROOT) -> list[Path]:
    """Objects of `ops/lanes` of a checkout, brought up to date."""
    # Who calls may itself run under make, whose job server is not ours to use.
    env = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    jobs = len(os.sched_getaffinity(0))
    subprocess.run(["make", "--silent", f"-j{jobs}", "cc-lanes"], cwd=root, env=env, check=True)
    units = [p for p in (root / "ops" / "lanes").glob("*.cc") if not p.name.endswith("_test.cc")]
    return [root / "build" / "cc" / "plain" / f"{path.stem}.o" for path in sorted(units)]
