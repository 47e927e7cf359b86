#!/usr/bin/env python3
"""Checks subjects of commits: `area: imperative summary`, at most 72 characters.

    python tools/lint_commits.py

Commits up to FIRST are older than the rule. Outside of a clone with that commit, such as in an
unpacked archive, there is nothing to check.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = "6fddfcd"
MAX_LENGTH = 72
SUBJECT = re.compile(r"[a-z0-9][\w./,*+ -]*: \S.*[^.\s]")


def fault(subject: str) -> str | None:
    """Returns the fault of a commit's subject, None if it follows the rule."""
    if len(subject) > MAX_LENGTH:
        return f"{len(subject)} characters, at most {MAX_LENGTH}"
    if SUBJECT.fullmatch(subject) is None:
        return "must be 'area: imperative summary' without a full stop"
    return None


def subjects(root: Path, first: str) -> list[tuple[str, str]] | None:
    """Returns (commit, subject) of all commits after `first`; None if git does not know `first`."""
    command = ["git", "-C", str(root), "log", "--no-merges", "--format=%h %s", f"{first}..HEAD"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    if run.returncode != 0:
        return None
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in run.stdout.splitlines()]


def main(root: Path = ROOT, first: str = FIRST) -> int:
    """Runs the command.

    Returns:
        0 if every subject follows the rule or there is no history, else 1.
    """
    found = subjects(root, first)
    if found is None:
        print(f"commits: no history since {first}, nothing to check")
        return 0
    faults = [(commit, subject, fault(subject)) for commit, subject in found]
    wrong = [(commit, subject, text) for commit, subject, text in faults if text is not None]
    for commit, subject, text in wrong:
        print(f"{commit} {subject!r}: {text}")
    print(f"commits: {len(found)} subjects, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
