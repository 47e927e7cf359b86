"""The documented environment variables are all that exist."""

import re
from pathlib import Path

from tf_libra.launcher.env_vars import VARIABLES, text

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r'"(TF_LIBRA_[A-Z_]+)"')


def test_every_variable_that_is_read_is_declared() -> None:
    sources = [
        *(ROOT / "tf_libra").rglob("*.py"),
        *(path for folder in ("ops", "passes") for path in (ROOT / folder).rglob("*.cc")),
    ]
    sources = [path for path in sources if not path.stem.endswith("_test")]
    read = {name for path in sources for name in NAME.findall(path.read_text())}
    assert read == {variable.name for variable in VARIABLES.values()}


def test_help_names_every_variable() -> None:
    assert all(variable.name in text() for variable in VARIABLES.values())
