#!/usr/bin/env python3
"""Checks the prose of sources and pages: docstring openings and replaced words.

    python tools/lint_prose.py            # fails if a folder has more faults than its limit
    python tools/lint_prose.py --list     # prints every fault with its line
    python tools/lint_prose.py --update   # lowers the limits to the present counts

A docstring begins with an imperative verb or a noun phrase. Each of WORDS has a standard term that
a reader would search for. `tools/prose_limits.json` holds the faults that each folder may still
have: a limit only falls, so a folder that is clean stays clean.
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIMITS = Path(__file__).with_name("prose_limits.json")
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
_WORDS = {re.compile(rf"\b(?:{word})\b", re.IGNORECASE): term for word, term in WORDS.items()}
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
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield node.body[0].lineno, text


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
    for number, part in enumerate(text.split("\n"), line):
        for pattern, term in _WORDS.items():
            for found in pattern.finditer(part):
                yield Fault(path, number, f"'{found[0]}': write {term}")


def faults_in_file(root: Path, path: Path) -> Iterator[Fault]:
    """Yields the faults of one source file or page below `root`."""
    name, source = path.relative_to(root).as_posix(), path.read_text()
    if path.suffix == ".md":
        yield from faults_in_text(name, 1, source)
        return
    for line, text in comments(path, source):
        yield from faults_in_text(name, line, text)
    if path.suffix != ".py":
        return
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


def folder_of(path: str) -> str:
    """Returns the folder that a file counts for: at most two levels, the root as '.'."""
    return "/".join(path.split("/")[:-1][:2]) or "."


def main(arguments: list[str] | None = None, root: Path = ROOT, limits: Path = LIMITS) -> int:
    """Runs the command.

    Returns:
        0 if no folder exceeds its limit, else 1.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print every fault")
    parser.add_argument("--update", action="store_true", help="lower the limits")
    flags = parser.parse_args(arguments)
    found = faults(root)
    counts = Counter(folder_of(fault.path) for fault in found)
    allowed: dict[str, int] = json.loads(limits.read_text()) if limits.exists() else {}
    if flags.list:
        for fault in found:
            print(f"{fault.path}:{fault.line}: {fault.text}")
    if flags.update:
        known = allowed if allowed else dict(counts)
        lowered = {name: min(count, counts[name]) for name, count in known.items() if counts[name]}
        limits.write_text(json.dumps(lowered, indent=1, sort_keys=True) + "\n")
        allowed = lowered
    exceeded = {name: n for name, n in counts.items() if n > allowed.get(name, 0)}
    for name, count in sorted(exceeded.items()):
        print(f"{name}: {count} faults of prose, at most {allowed.get(name, 0)} are allowed:")
        for fault in found:
            if folder_of(fault.path) == name:
                print(f"  {fault.path}:{fault.line}: {fault.text}")
    print(f"prose: {len(found)} faults, {sum(allowed.values())} allowed")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
