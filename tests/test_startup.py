"""Programs that tests start hide optional packages from Keras alone."""

import subprocess
import sys

import pytest

PROGRAM = """
try:
    exec("import matplotlib", {"__name__": "keras.src.plots"})
except ModuleNotFoundError as error:
    print(error.name)
exec("import matplotlib", {"__name__": "any.module"})
"""


def test_keras_alone_has_no_optional_packages() -> None:
    pytest.importorskip("matplotlib")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout == "matplotlib\n", done.stderr
    assert done.returncode == 0, done.stderr
