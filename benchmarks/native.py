"""Programs of benchmarks that are C++ alone: one source of this folder, and the lanes."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def folder_of(name: str) -> Path:
    """Where a program, and what else it is made of, is built."""
    folder = ROOT / "build" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def build(name: str, options: Sequence[str] = ()) -> Path:
    """Compiles `benchmarks/NAME.cc` with the lanes; returns the program.

    Args:
        name: of the source.
        options: of the compiler, besides.
    """
    program = folder_of(name) / name
    lanes = [p for p in (ROOT / "ops" / "lanes").glob("*.cc") if not p.name.endswith("_test.cc")]
    sources = [ROOT / "benchmarks" / f"{name}.cc", *lanes]
    command = ["g++", "-std=c++17", "-O3", f"-I{ROOT}", *map(str, sources), *options]
    subprocess.run([*command, "-pthread", "-o", str(program)], check=True)
    return program
