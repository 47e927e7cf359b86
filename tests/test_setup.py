"""setup.py in environments of its own: what it says where TensorFlow is missing or too old."""

import importlib.util
import os
import subprocess
import venv
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def bare_venv(tmp_path: Path) -> Path:
    """An environment that holds nothing but setuptools; returns its site-packages."""
    venv.create(tmp_path / "venv")
    [site_packages] = (tmp_path / "venv").glob("lib/python*/site-packages")
    package = Path(setuptools.__file__).parent
    for name in ("setuptools", "_distutils_hack"):
        (site_packages / name).symlink_to(package.parent / name)
    return site_packages


def run_setup(site_packages: Path, **env: str) -> subprocess.CompletedProcess[str]:
    python = site_packages.parents[2] / "bin" / "python"
    return subprocess.run(
        [python, ROOT / "setup.py", "--version"], capture_output=True, text=True, env=env
    )


def add_tensorflow(site_packages: Path, version: str) -> None:
    """Adds the files that setup.py looks at: a package, and metadata that names it."""
    (site_packages / "tensorflow").mkdir()
    (site_packages / "tensorflow" / "__init__.py").touch()
    info = site_packages / f"tensorflow_cpu-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: tensorflow-cpu\nVersion: {version}\n"
    )
    (info / "top_level.txt").write_text("tensorflow\n")


def test_without_tensorflow_only_planning_is_installed_and_it_says_so(bare_venv: Path) -> None:
    done = run_setup(bare_venv)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("+planning.only")
    [line] = [line for line in done.stderr.splitlines() if line.startswith("tf-libra:")]
    assert "no TensorFlow" in line
    assert "2.18 or 2.21" in line


@pytest.mark.parametrize("version", ["2.18.1", "2.21.0"])
def test_the_version_carries_the_tensorflow_it_is_built_for(bare_venv: Path, version: str) -> None:
    add_tensorflow(bare_venv, version)
    done = run_setup(bare_venv)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"+tf{version}")


@pytest.mark.parametrize("version", ["2.17.1", "2.20.0", "2.2.1", "3.0.0"])
def test_another_tensorflow_is_rejected_with_the_supported_ones(
    bare_venv: Path, version: str
) -> None:
    add_tensorflow(bare_venv, version)
    done = run_setup(bare_venv)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1] == (
        f"tf-libra: TensorFlow {version} is not supported; supported are 2.18.x and 2.21.x."
    )


@pytest.mark.parametrize("version", ["2.20.0", "2.22.0.dev20260905"])
def test_any_tensorflow_can_be_tried_on_request(bare_venv: Path, version: str) -> None:
    add_tensorflow(bare_venv, version)
    assert run_setup(bare_venv).returncode != 0
    done = run_setup(bare_venv, TF_LIBRA_ANY_TENSORFLOW="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"+tf{version}")


def test_changed_source_is_compiled_apart_from_the_others_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("setup_of_tf_libra", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    monkeypatch.chdir(tmp_path)
    build = Path("build", "it")
    build.mkdir(parents=True)
    for name in ("one/a.cc", "one/b.cc", "one/b_test.cc", "two/c.cc"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
        os.utime(name, (1000, 1000))
    library = setup.Library("it", build, ("one/*.cc", "two/*.cc"))

    # A folder that was built in before sources were joined.
    assert library.units() == [Path("one/a.cc"), Path("one/b.cc"), Path("two/c.cc")]
    (build / setup.JOINED).touch()
    os.utime(build / setup.JOINED, (1000, 1000))
    joined = [build / "one/units.cc", build / "two/units.cc"]
    assert library.units() == joined
    assert joined[0].read_text() == '#include "one/a.cc"\n#include "one/b.cc"\n'
    os.utime("one/b.cc", (1001, 1001))
    assert library.units() == [Path("one/b.cc"), *joined]
    assert joined[0].read_text() == '#include "one/a.cc"\n'
    assert [library.object_of(unit) for unit in library.units()] == [
        build / "one/b.o",
        build / "one/units.o",
        build / "two/units.o",
    ]
