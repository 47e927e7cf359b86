"""The C++ tests, those of each file as one test."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("ops", "ops/lanes", "ops/nccl_tuner", "passes")
FILES = sorted(
    f"{folder}/{path.name}" for folder in FOLDERS for path in (ROOT / folder).glob("*_test.cc")
)

Outcome = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def built_programs() -> dict[str, Path]:
    """Builds the programs as `make cc-test` does, and returns their paths by name."""
    # This suite may itself run under make, whose job server is not ours to use.
    env = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    command = [sys.executable, "setup.py", "--quiet", "cc_tests"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    paths = [ROOT / line for line in done.stdout.splitlines() if line.endswith("_test")]
    return {path.name: path for path in paths}


@pytest.fixture(scope="module")
def outcomes(
    built_programs: dict[str, Path], request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[Outcome]]]:
    """Runs the tests of all requested files, four at a time: they mostly wait for deadlines.

    A file whose tests are a program of their own has that program's name, others have the name of
    their folder.
    """

    def run(file: str) -> Outcome:
        path = Path(file)
        program = built_programs.get(path.stem, built_programs.get(f"{path.parent.name}_test"))
        command = [str(program), f"--source-file=*{file}"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    wanted = {
        item.callspec.params["file"]
        for item in request.node.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }
    with ThreadPoolExecutor(4) as pool:
        yield {file: pool.submit(run, file) for file in sorted(wanted)}


@pytest.mark.parametrize("file", FILES)
def test_tests_of_a_file_pass(outcomes: dict[str, Future[Outcome]], file: str) -> None:
    done = outcomes[file].result()
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert output.count("\nok ") + output.startswith("ok "), f"no test of {file} ran:\n{output}"
