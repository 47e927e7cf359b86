"""The page that says what is tested where names what there is; no other page has such tables."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FOLDERS = ("tests", "ops", "passes", "benchmarks")
QUOTED = re.compile(r"`([^`\n]+)`")
TEST_COLUMN = re.compile(r"^\|.*\| (test|test case|case)[^|]*\|$", re.MULTILINE)


def sources() -> dict[str, str]:
    """Everything that a test may stand in, by its path below the tree."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in FOLDERS
        for pattern in ("*.py", "*.cc")
        for path in (ROOT / folder).rglob(pattern)
    }


def named() -> list[str]:
    """What stands in quotes in the last column of a table."""
    rows = re.findall(r"^\|.*\|$", (DOCS / "tested.md").read_text(), re.MULTILINE)
    return [one for row in rows for one in QUOTED.findall(row.rstrip("| ").rpartition(" | ")[2])]


def test_every_test_that_is_named_is_there() -> None:
    known = sources()
    everything = {word for text in known.values() for word in re.findall(r"\w+", text)}

    def is_there(name: str) -> bool:
        if name.endswith((".py", ".cc")):
            return any(path == name or path.endswith(f"/{name}") for path in known)
        # `test_x[case]`, `...[case]`, `begins_like_*`, or a command.
        words = re.findall(r"\w+", name.replace("python -m benchmarks.", ""))
        if "*" in name:
            return all(any(one.startswith(word) for one in everything) for word in words)
        return everything.issuperset(words)

    found = named()
    assert len(found) > 200
    assert [name for name in found if not is_there(name)] == []


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_tables_of_tests_are_for_contributors(page: str) -> None:
    if page != "tested.md":
        assert TEST_COLUMN.findall((DOCS / page).read_text()) == []


def messages() -> str:
    """The program's sources, texts over several lines in one."""
    folders = [ROOT / folder for folder in ("tf_libra", "tools", "ops", "passes")]
    kinds = ("*.py", "*.cc", "*.js")
    texts = [path.read_text() for one in folders for kind in kinds for path in one.rglob(kind)]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(texts))


def test_symptoms_are_words_of_the_program() -> None:
    """Those in quotes; what stands for a number, a name or more is left out."""
    rows = re.findall(r"^\| (.*?) \|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    quoted = [one for row in rows for one in QUOTED.findall(row)]
    assert len(quoted) > 10
    known = messages()
    parts = [part for one in quoted for part in re.split(r"\.\.\.|\b[NM]\b|\[|: ", one)]
    assert [part for part in parts if part.strip() and part.strip() not in known] == []
