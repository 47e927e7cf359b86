"""setup.py in environments of its own: what it says where TensorFlow is missing or too old."""

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
