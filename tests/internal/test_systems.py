"""The package works without each of its optional systems."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drawing import SHARE
from tf_libra.internal.registry import SYSTEMS

ROOT = Path(__file__).resolve().parents[2]
# For names that users import, which are looked up at first use.
FACADES = ("__init__.py", "bursts.py", "pipelines.py", "strategies.py")
# Quick tests of the remaining package: no worker, no TensorFlow.
SELECTION = (
    "config/test_option_spec.py",
    "config/test_option_groups.py",
    "config/test_validators.py",
    "planning/data_parallel/test_libra.py",
    "planning/data_parallel/test_mg_wfbp.py",
    "simulation/test_sequential.py",
    "internal/test_registry.py",
)
END = "end of help"
WITHOUT_MODEL_PARALLEL = """
import tf_libra
from tf_libra import strategies
from tf_libra.cli import main
from tf_libra.reporting.records.record_types import KINDS
from tf_libra.reporting.tensorboard.views.card_registry import CARDS

assert tf_libra.optimize("libra").keywords["options"].strategy.name == "libra"
tf_libra.optimize("auto")(lambda: None)
for name in ("spp", "deeppool"):
    try:
        tf_libra.optimize(name)
    except ValueError as error:
        assert str(error).startswith("strategy must be one of syneasgd"), error
        assert name not in str(error).split(", got")[0], error
    else:
        raise AssertionError(name)
assert not hasattr(strategies, "Spp") and not hasattr(strategies, "DeepPool")
assert not hasattr(tf_libra, "make_pipeline_plan") and not hasattr(tf_libra, "boundary")
assert not hasattr(tf_libra.pipelines, "boundary")
assert not hasattr(tf_libra.bursts, "simulate_burst")
assert not {"pipeline", "burst"} & {*KINDS, *CARDS} and "background" in CARDS
assert main(["--help"]) == 0
"""
WITHOUT_BACKGROUND_JOBS = """
import tf_libra
from tf_libra.cli import main, run
from tf_libra.launcher.env_vars import VARIABLES
from tf_libra.reporting.tensorboard.views.card_registry import CARDS
from tf_libra.runtime.step_hooks import active_hooks

assert tf_libra.optimize("spp", progress=True).keywords["kind"].name == "pipelines"
assert active_hooks() == [] and not hasattr(tf_libra, "background")
assert "background" not in CARDS and "pipeline" in CARDS
assert "--background" not in run.usage() and "TF_LIBRA_BACKGROUND" not in VARIABLES
assert main(["--help"]) == 0
"""
CASES = {
    "model_parallel": (WITHOUT_MODEL_PARALLEL, {"pipeline", "burst"}),
    "background_jobs": (WITHOUT_BACKGROUND_JOBS, set()),
}


def run(folder: Path, code: str) -> str:
    """Runs code in which `tf_libra` is the folder's, and not also that of an editable install."""
    code = (
        "import sys\n"
        "sys.meta_path = [one for one in sys.meta_path if 'ditable' not in repr(one)]\n"
        f"{code}"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment[SHARE] = "0.1"  # the suite tests all cases of the whole package
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=SYSTEMS)
def reduced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and its tests without one system, of which the folder has the name."""
    system = str(request.param)
    folder = tmp_path_factory.mktemp("systems") / system
    ignored = shutil.ignore_patterns(system, "__pycache__")
    shutil.copytree(ROOT / "tf_libra", folder / "tf_libra", ignore=ignored, symlinks=True)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")  # which tests/conftest.py imports
    return folder


@pytest.mark.parametrize("system", SYSTEMS)
def test_core_imports_no_module_of_a_system(system: str) -> None:
    package = ROOT / "tf_libra"
    for path in package.rglob("*.py"):
        inside = path.relative_to(package)
        if inside.parts[0] in SYSTEMS or inside.as_posix() in FACADES:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            wrong = [name for name in names if name.startswith(f"tf_libra.{system}")]
            assert wrong == [], inside


def test_package_works_and_remaining_tests_pass_without_a_system(reduced: Path) -> None:
    """One process imports all modules, those that need TensorFlow, too, and then runs tests."""
    modules = sorted(
        ".".join(path.relative_to(reduced).with_suffix("").parts).removesuffix(".__init__")
        for path in (reduced / "tf_libra").rglob("*.py")
        if path.stem != "__main__"
    )
    code, families = CASES[reduced.name]
    imports = f"import importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
    options = ["-q", "-x", "-p", "no:cacheprovider", *(f"tests/{name}" for name in SELECTION)]
    tests = f"import pytest\nprint({END!r}, flush=True)\nsys.exit(pytest.main({options!r}))"
    reported = run(reduced, f"{imports}{code}\n{tests}")
    helped, _, tested = reported.partition(END)
    listed = {line.split()[0] for line in helped.splitlines() if line.startswith("  ")}
    assert {"plan", "run"} < listed
    assert listed & {"pipeline", "burst"} == {"pipeline", "burst"} - families
    assert " passed" in tested
