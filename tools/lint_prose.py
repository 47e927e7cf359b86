#!/usr/bin/env python3
"""Checks the prose of sources and pages: docstring openings, replaced words, names of variables.

    python tools/lint_prose.py

Prints every fault with its line. A docstring begins with a verb or a noun phrase. Each of WORDS has
a standard term that a reader would search for. A variable is a noun of the field, none of NAMES.
"""

import ast
import io
import re
import symtable
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tf_libra", "ops", "passes", "benchmarks", "tests", "tools", "examples", "docs")

OPENINGS = (
    *("What", "Whether", "Of", "Who", "Whoever", "Which", "Where", "By", "How"),
    *("Those", "That", "These", "They", "It", "Nothing", "None"),
)
# The word, and the term that replaces it.
WORDS = {
    r"beside": "concurrent, adjacent or next to",
    r"at once": "concurrently or immediately",
    r"anew": "again, or re- as in retrace",
    r"likewise": "same as X",
    r"whoever|nobody|somebody|anybody": "the component, the caller, no rank",
    r"told|asked": "logged, reported, requested",
    r"in vain": "until it times out",
    r"in force": "active",
    r"refuse[sd]?": "reject, raise",
    r"hand(?:s|ed)? (?:on|over)": "forward, submit",
    r"let go of": "free",
    r"farewells?": "abort message",
}
NAMES = frozenset(("one", "of"))
_WORDS = {
    re.compile(rf"\b(?:{word})\b".replace(" ", r"\s+"), re.IGNORECASE): term
    for word, term in WORDS.items()
}
_ANY_WORD = re.compile("|".join(pattern.pattern for pattern in _WORDS), re.IGNORECASE)
_CXX_COMMENT = re.compile(r"//(.*)$", re.MULTILINE)


class Fault(NamedTuple):
    """One place that the check finds.

    Attributes:
        path: below the root, with slashes.
        line: from 1.
        text: the fault and its remedy.
    """

    path: str
    line: int
    text: str


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and text of every docstring of a Python source."""
    remaining: list[ast.AST] = [ast.parse(source)]
    while remaining:
        node = remaining.pop()
        for block in ("body", "orelse", "handlers", "finalbody", "cases"):  # expressions have none
            remaining += getattr(node, block, ())
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield node.body[0].lineno, text


def variables(source: str) -> Iterator[tuple[int, str]]:
    """Yields the first line of the scope, and the name, of every variable that is in NAMES."""
    remaining = [symtable.symtable(source, "<source>", "exec")]
    while remaining:
        scope = remaining.pop()
        remaining += scope.get_children()
        for symbol in map(scope.lookup, sorted(NAMES.intersection(scope.get_identifiers()))):
            is_bound = symbol.is_assigned() or symbol.is_annotated() or symbol.is_parameter()
            if is_bound and not symbol.is_namespace():  # functions have names of their own
                yield scope.get_lineno(), symbol.get_name()


def comments(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and text of every comment of a Python or C++ source."""
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
        return
    for found in _CXX_COMMENT.finditer(source):
        yield source.count("\n", 0, found.start()) + 1, found[1]


def faults_in_text(path: str, line: int, text: str) -> Iterator[Fault]:
    """Yields a fault for every replaced word of a text that begins at `line`."""
    if not _ANY_WORD.search(text):
        return
    found = [(match, term) for pattern, term in _WORDS.items() for match in pattern.finditer(text)]
    for match, term in sorted(found, key=lambda pair: pair[0].start()):
        number = line + text.count("\n", 0, match.start())
        yield Fault(path, number, f"'{' '.join(match[0].split())}': write {term}")


def faults_in_file(root: Path, path: Path) -> Iterator[Fault]:
    """Yields the faults of one source file or page below `root`."""
    name, source = path.relative_to(root).as_posix(), path.read_text()
    if path.suffix == ".md":
        yield from faults_in_text(name, 1, source)
        return
    if _ANY_WORD.search(source):  # few have any, and reading their tokens takes longest
        for line, text in comments(path, source):
            yield from faults_in_text(name, line, text)
    if path.suffix != ".py":
        return
    for line, variable in variables(source):
        yield Fault(name, max(line, 1), f"variable '{variable}' in this scope: use a noun")
    for line, text in docstrings(source):
        yield from faults_in_text(name, line, text)
        first = text.split(maxsplit=1)[0].rstrip(",:.") if text.strip() else ""
        if first in OPENINGS:
            yield Fault(name, line, f"begins with '{first}': begin with a verb or a noun phrase")


def faults(root: Path) -> list[Fault]:
    """Returns the faults of all sources and pages below `root`, by path and line."""
    paths = {root / "README.md", root / "CONTRIBUTING.md"}
    for folder in FOLDERS:
        for suffix in ("py", "cc", "h", "md"):
            paths.update((root / folder).rglob(f"*.{suffix}"))
    own = Path(__file__).name  # holds the words themselves
    return [
        fault
        for path in sorted(paths)
        if path.is_file() and path.name not in (own, f"test_{own}")
        for fault in faults_in_file(root, path)
    ]


def main(root: Path = ROOT) -> int:
    """Runs the command.

    Returns:
        0 if there is no fault, else 1.
    """
    found = faults(root)
    for fault in found:
        print(f"{fault.path}:{fault.line}: {fault.text}")
    print(f"prose: {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
