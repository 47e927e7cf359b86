"""The statements of CONTRIBUTING.md on the tree are true."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "tf_libra"


def rows() -> list[tuple[set[str], list[str]]]:
    """Returns the rows for modules without a test of their name: the modules, and their tests."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("| modules | tested by |\n|---|---|\n")[2].partition("\n\n")[0]
    found = []
    for row in table.splitlines():
        modules, tests = (re.findall(r"`([^`]+)`", cell) for cell in row.strip("|").split("|"))
        found.append(({name for one in modules for name in _expanded(one)}, tests))
    return found


def _expanded(pattern: str) -> list[str]:
    names = re.fullmatch(r"(.*)\{(.*)\}(.*)", pattern)
    if names is None:
        return [pattern]
    return [f"{names[1]}{one}{names[3]}" for one in names[2].split(",")]


def test_every_module_has_a_test_or_is_said_to_be_tested_through_others() -> None:
    said = [name for modules, _ in rows() for name in modules]
    assert len(said) == len(set(said)) > 20
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    modules = {path.as_posix() for path in paths if not path.stem.startswith("__")}
    tested = {
        name
        for name in modules
        if (ROOT / "tests" / name).with_name(f"test_{Path(name).stem}.py").exists()
    }
    assert set(said) == modules - tested


def test_what_tests_them_is_there() -> None:
    for modules, tests in rows():
        assert [one for one in tests if not (ROOT / one).is_file()] == [], modules
