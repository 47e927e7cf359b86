"""The names that users import from the package itself."""

import subprocess
import sys
from importlib import import_module, metadata

import pytest

import tf_libra


def test_version_is_the_installed_distributions() -> None:
    assert tf_libra.__version__ == metadata.version("tf-libra")
    assert "__version__" in dir(tf_libra)


@pytest.mark.parametrize("name", ["planning", "pipelines", "bursts"])
def test_planning_names_are_the_same_in_their_module(name: str) -> None:
    module = import_module(f"tf_libra.{name}")
    assert len(module.__all__) <= 15 and {*module.__all__} <= {*dir(module)}
    shared = {*module.__all__} & {*tf_libra.__all__}
    assert len(shared) >= 3
    for public in module.__all__:
        member = getattr(module, public)
        assert public not in shared or member is getattr(tf_libra, public)
    with pytest.raises(AttributeError, match="'magic'"):
        module.magic  # noqa: B018


def test_modules_are_imported_at_their_first_use() -> None:
    program = (
        "import sys, tf_libra, tf_libra.pipelines, tf_libra.bursts, tf_libra.planning\n"
        "tf_libra.make_plan, tf_libra.pipelines.make_pipeline_plan, tf_libra.bursts.BurstPlan\n"
        "assert not {'tensorflow', 'horovod', 'keras'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
