"""Programs of benchmarks that are C++ alone: one source of this folder, and the lanes."""

import functools
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def folder_of(name: str) -> Path:
    """Where a program, and what else it is made of, is built."""
    folder = ROOT / "build" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def build(name: str, options: tuple[str, ...] = ()) -> Path:
    """Compiles `benchmarks/NAME.cc`, and of the lanes what has changed; returns the program.

    Once in a process: what changes meanwhile is not looked at.

    Args:
        name: of the source.
        options: of the compiler, besides.
    """
    program = folder_of(name) / name
    source = ROOT / "benchmarks" / f"{name}.cc"
    command = ["g++", "-std=c++17", "-O3", f"-I{ROOT}", source, *lanes(), *options]
    subprocess.run([*command, "-pthread", "-o", program], check=True)
    return program


def lanes() -> list[Path]:
    """Objects of `ops/lanes`, brought up to date."""
    # Who calls may itself run under make, whose job server is not ours to use.
    env = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    jobs = len(os.sched_getaffinity(0))
    subprocess.run(["make", "--silent", f"-j{jobs}", "cc-lanes"], cwd=ROOT, env=env, check=True)
    units = [p for p in (ROOT / "ops" / "lanes").glob("*.cc") if not p.name.endswith("_test.cc")]
    return [ROOT / "build" / "cc" / "plain" / f"{path.stem}.o" for path in sorted(units)]
