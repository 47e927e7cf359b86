#!/usr/bin/env python3
"""Tries TF-Libra with a TensorFlow that it does not support yet, in an environment of its own.

    python tools/try_tensorflow.py tf-nightly-cpu
    python tools/try_tensorflow.py "tensorflow-cpu==2.20.*"

Looks for each private name of TensorFlow that TF-Libra uses, builds the extension, and runs the
tests of the Grappler pass and of two ranks without Horovod. Files of the tree are copied first: the
library of the tree stays that of its environment.
"""

import argparse
import ast
import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRIVATE_NAMES = "tf_libra/internal/tf_internal.py"
# What these tests need of the development dependencies.
TEST_PACKAGES = ("hypothesis", "networkx", "pytest", "pytest-timeout")
TESTS = {
    "pass": [
        "tests/passes",
        "--ignore=tests/passes/test_horovod_rewriter.py",
        "-m",
        "not compiles",
    ],
    "two ranks": ["tests/coordination/test_launched_training.py", "-k", "not two_hosts"],
}
# Prints the version of TensorFlow, and the names and patched attributes that it lacks.
FIND_MISSING = """
import importlib, json, sys
import tensorflow as tf
from tf_libra.internal import patches

def has(module, name):
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True

missing = [f"{module}.{name}" for module, name in json.loads(sys.argv[1]) if not has(module, name)]
patched = [one for one in vars(patches).values() if isinstance(one, patches.Patch)]
missing += [
    f"{one.module}.{one.path}"
    for one in patched
    if one.module.startswith("tensorflow") and not one.adds and not one.exists()
]
print(json.dumps([tf.__version__, missing]))
"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of one part of the trial.

    Attributes:
        part: name of the part.
        passed: whether it did what TF-Libra needs.
        text: what it found.
    """

    part: str
    passed: bool
    text: str


def private_names(source: str) -> list[tuple[str, str]]:
    """Returns (module, name) of everything that a module imports from inside TensorFlow."""
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return [
        (node.module, alias.name)
        for node in imports
        if node.module and node.module.startswith("tensorflow.")
        for alias in node.names
    ]


def copy_tree(source: Path, target: Path) -> None:
    """Copies the files that git knows or does not ignore; keeps what was built in `target`."""
    listed = subprocess.run(
        ["git", "-C", source, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    )
    names = {name for name in listed.stdout.split("\0") if name and (source / name).is_file()}
    for old in [path for path in target.rglob("*") if path.is_file()]:
        relative = old.relative_to(target)
        if relative.parts[0] != "build" and str(relative) not in names:
            old.unlink()
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name)  # with its time, which ninja compares


def install(folder: Path, requirement: str) -> Path:
    """Makes an environment with a TensorFlow and what the tests need; returns its Python."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        line
        for line in known["project"]["optional-dependencies"]["dev"]
        if re.split(r"[<>=!\[]", line)[0] in TEST_PACKAGES
    ]
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, symlinks=True)
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--quiet",
        "install",
        "--upgrade",
    ]
    required = known["tool"]["tf-libra"]["dependencies"]
    subprocess.run([*pip, requirement, *required, *wanted, "setuptools<81", "ninja"], check=True)
    return python


def find_missing(python: Path, tree: Path, variables: dict[str, str]) -> Outcome:
    """Looks for the private names of TensorFlow, one by one."""
    names = private_names((tree / PRIVATE_NAMES).read_text())
    done = subprocess.run(
        [python, "-c", FIND_MISSING, json.dumps(names)],
        cwd=tree,
        env=variables,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return Outcome("private names", False, done.stderr.strip().rpartition("\n")[2])
    version, missing = json.loads(done.stdout.strip().rpartition("\n")[2])
    text = f"all are there ({len(names)} imports, and patched attributes)"
    if missing:
        text = f"missing: {', '.join(missing)}"
    return Outcome(f"private names of {version}", not missing, text)


def build(python: Path, tree: Path, variables: dict[str, str]) -> Outcome:
    """Builds the extension in the copied tree."""
    started = time.monotonic()
    build_here = ("egg_info", "build_ext", "--inplace")
    command: list[str | Path] = [python, "setup.py", "--quiet", *build_here]
    done = subprocess.run(command, cwd=tree, env=variables | {"TF_LIBRA_ANY_TENSORFLOW": "1"})
    text = f"{'built' if done.returncode == 0 else 'FAILED'} in {time.monotonic() - started:.0f} s"
    return Outcome("extension", done.returncode == 0, text)


def test(part: str, python: Path, tree: Path, variables: dict[str, str]) -> Outcome:
    """Runs the tests of a part."""
    options = ("-q", "-p", "no:cacheprovider", *TESTS[part])
    command: list[str | Path] = [python, "-m", "pytest", *options]
    closing = "no output"
    with running(command, tree, variables) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            closing = line.strip() or closing
    return Outcome(part, process.returncode == 0, closing.strip("= "))


@contextlib.contextmanager
def running(
    command: Sequence[str | Path], folder: Path, variables: dict[str, str]
) -> Iterator["subprocess.Popen[str]"]:
    """Runs a command whose output is read, and ends it with the block."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
        process.wait()
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Tries one TensorFlow; 1 if TF-Libra does not work with it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("requirement", help="package of TensorFlow, as pip takes it")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "tried")
    flags = parser.parse_args()
    folder = flags.folder.resolve() / re.sub(r"[^\w.-]+", "-", flags.requirement).strip("-.")
    tree = folder / "tree"
    tree.mkdir(parents=True, exist_ok=True)
    copy_tree(ROOT, tree)
    python = install(folder / "venv", flags.requirement)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    variables = environment | {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(tree),
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }
    outcomes = [find_missing(python, tree, variables), build(python, tree, variables)]
    if outcomes[-1].passed:
        outcomes += [test(part, python, tree, variables) for part in TESTS]
    print(f"\n{flags.requirement}:")
    for outcome in outcomes:
        print(f"  {'ok    ' if outcome.passed else 'FAILED'} {outcome.part}: {outcome.text}")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
