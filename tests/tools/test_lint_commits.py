"""The check of commit subjects, on histories that git has made."""

import subprocess
from pathlib import Path

import pytest

from tools import lint_commits


@pytest.mark.parametrize(
    "subject",
    ["lanes: bound answers to probes", "ops/lanes: carry the step", "docs, tests: name both ranks"],
)
def test_subject_with_area_and_summary_passes(subject: str) -> None:
    assert lint_commits.fault(subject) is None


@pytest.mark.parametrize(
    "subject",
    [
        "Bound answers to probes",
        "lanes bound answers",
        "lanes:bound answers",
        "lanes: ",
        "lanes: bound answers.",
        "lanes: " + "x" * 66,
    ],
)
def test_other_subject_is_a_fault(subject: str) -> None:
    assert lint_commits.fault(subject) is not None


def test_longest_subject_passes() -> None:
    assert lint_commits.fault("lanes: " + "x" * 65) is None


@pytest.fixture
def history(tmp_path: Path) -> Path:
    for arguments in (["init", "-q"], ["config", "user.name", "n"], ["config", "user.email", "e"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    return tmp_path


def commit(root: Path, subject: str) -> str:
    git = ["git", "-C", str(root)]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", subject], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return head.stdout.strip()


def test_commits_after_the_first_are_checked(history: Path) -> None:
    first = commit(history, "Older than the rule")
    commit(history, "lanes: carry the step")
    assert lint_commits.main(history, first) == 0
    commit(history, "No area")
    assert lint_commits.main(history, first) == 1


def test_without_history_nothing_is_checked(tmp_path: Path) -> None:
    assert lint_commits.main(tmp_path, "6fddfcd") == 0
