"""The C++ tests of `ops/lanes`, which need no TensorFlow, each as one test."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(path.stem for path in (ROOT / "ops" / "lanes").glob("*_test.cc"))


@pytest.fixture(scope="session")
def built_programs() -> Path:
    """Builds all of them as `make cc-test` does, and returns their folder."""
    # This suite may itself run under make, whose job server is not ours to use.
    env = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    subprocess.run(["make", "-j2", "cc-tests"], cwd=ROOT, env=env, check=True)
    return ROOT / "build" / "cc" / "plain"


Outcome = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def outcomes(
    built_programs: Path, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[Outcome]]]:
    """Runs all requested programs, four at a time: they mostly wait for deadlines."""

    def run(program: str) -> Outcome:
        command = [built_programs / program]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    wanted = {
        item.callspec.params["program"]
        for item in request.node.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }
    with ThreadPoolExecutor(4) as pool:
        yield {program: pool.submit(run, program) for program in sorted(wanted)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_passes(outcomes: dict[str, Future[Outcome]], program: str) -> None:
    done = outcomes[program].result()
    assert done.returncode == 0, done.stdout + done.stderr
