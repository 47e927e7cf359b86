"""The check of prose: what it finds, and where."""

from pathlib import Path

import pytest

from tools import lint_prose

CLEAN = '"""Plan cache."""\n\n\ndef load() -> None:\n    """Load a plan."""\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tf_libra" / "planning").mkdir(parents=True)
    (tmp_path / "tf_libra" / "planning" / "plan.py").write_text(CLEAN)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_clean_sources_have_no_faults(root: Path) -> None:
    assert lint_prose.faults(root) == []


@pytest.mark.parametrize("opening", ["What", "Whether", "Of", "Who", "Which"])
def test_docstring_opening_is_found_with_its_line(root: Path, opening: str) -> None:
    write(root, "tf_libra/a.py", f'X = 1\n\n\ndef f() -> None:\n    """{opening} it is."""\n')
    [fault] = lint_prose.faults(root)
    assert (fault.path, fault.line) == ("tf_libra/a.py", 5)
    assert opening in fault.text


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("tf_libra/a.py", "X = 1  # computed anew\n", 1),
        ("tf_libra/a.py", 'def f():\n    """Run.\n\n    All at once.\n    """\n', 4),
        ("ops/lanes/a.cc", "int x;\n// Nobody waits.\n", 2),
        ("docs/a.md", "# Title\n\nRanks are TOLD so.\n", 3),
        ("docs/a.md", "# Title\n\nAll ranks at\nonce.\n", 3),
        ("README.md", "It stands beside it.\n", 1),
    ],
)
def test_replaced_word_is_found_with_its_line(root: Path, name: str, text: str, line: int) -> None:
    write(root, name, text)
    [fault] = lint_prose.faults(root)
    assert (fault.path, fault.line) == (name, line)


def test_words_in_code_and_inside_of_words_are_allowed(root: Path) -> None:
    write(root, "tf_libra/a.py", 'beside = "told"\nX = {"asked": beside}  # untold\n')
    assert lint_prose.faults(root) == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("X = 1\n\nfor one in range(X):\n    pass\n", 1),
        ("X = 1\n\n\ndef f(of: int) -> int:\n    return of\n", 4),
        ("X = (\n    1,\n    [one for one in range(2)],\n)\n", 3),
        ("X = 1\nF = lambda of: X\n", 2),
        ("class A:\n    one: str\n", 1),
    ],
)
def test_variable_that_is_no_noun_is_found_with_its_scope(
    root: Path, source: str, line: int
) -> None:
    write(root, "tf_libra/a.py", source)
    [fault] = lint_prose.faults(root)
    assert (fault.path, fault.line) == ("tf_libra/a.py", line)


def test_function_and_attribute_names_are_no_variables(root: Path) -> None:
    write(root, "tf_libra/a.py", "class A:\n    def of(self):\n        return self.one\n")
    assert lint_prose.faults(root) == []


def test_faults_are_printed_and_fail(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint_prose.main(root) == 0
    write(root, "tf_libra/planning/other.py", '"""What is planned."""\n')
    assert lint_prose.main(root) == 1
    assert "tf_libra/planning/other.py:1" in capsys.readouterr().out


def test_the_tree_has_no_faults() -> None:
    assert lint_prose.main() == 0
