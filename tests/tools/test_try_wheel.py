"""The contents of a wheel; `make wheel` tries it in an environment of its own."""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker_processes import worker_environment
from tools.try_wheel import NEEDED, TRAINING, problems

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the tree as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            *(sys.executable, "setup.py", "--quiet"),
            *("build", "--build-base", folder / "build"),
            *("egg_info", "--egg-base", folder),
            *("bdist_wheel", "--bdist-dir", folder / "bdist", "--dist-dir", folder / "dist"),
        ],
        cwd=ROOT,
        check=True,
    )
    [made] = (folder / "dist").iterdir()
    return made


def changed(wheel: Path, folder: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """A copy of a wheel whose files are what `change` makes of them; None leaves one out."""
    copy = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(copy, "w") as new:
        for name in old.namelist():
            content = change(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
    return copy


def test_a_wheel_has_what_is_needed_and_requires_its_tensorflow(wheel: Path) -> None:
    assert problems(wheel) == []


@pytest.mark.parametrize("name", NEEDED)
def test_missing_file_is_named(wheel: Path, tmp_path: Path, name: str) -> None:
    without = changed(wheel, tmp_path, lambda path, content: None if path == name else content)
    assert problems(without) == [f"{name} is missing"]


def test_a_wheel_that_any_tensorflow_satisfies_is_rejected(wheel: Path, tmp_path: Path) -> None:
    def unpin(name: str, content: bytes) -> bytes:
        if not name.endswith("METADATA"):
            return content
        filtered = [
            line
            for line in content.splitlines()
            if not line.startswith(b"Requires-Dist: tensorflow") or b"extra ==" in line
        ]
        return b"\n".join(filtered)

    [problem] = problems(changed(wheel, tmp_path, unpin))
    assert problem.startswith("it does not require the TensorFlow 2.")


def test_tests_and_sources_do_not_belong_in_a_wheel(wheel: Path, tmp_path: Path) -> None:
    copy = changed(wheel, tmp_path, lambda _, content: content)
    with zipfile.ZipFile(copy, "a") as file:
        file.writestr("tests/conftest.py", "")
        file.writestr("tf_libra/lane_engine.cc", "")
    assert problems(copy) == [
        "tests/conftest.py does not belong in it",
        "tf_libra/lane_engine.cc does not belong in it",
    ]


@pytest.mark.workers
def test_two_ranks_train_without_horovod() -> None:
    """No compiler is found either: what a wheel's user has."""
    program = Path(sys.executable).with_name("tf-libra")
    done = subprocess.run(
        [program, "run", "-np", "2", "python", TRAINING],
        env=worker_environment() | {"PATH": str(program.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "2 ranks trained 9 steps to the weights of one" in done.stdout
