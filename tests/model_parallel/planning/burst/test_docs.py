"""The docs' tables: every name and every test in them exists."""

import re
from pathlib import Path

from tests.planning.data_parallel.test_equations import resolves

ROOT = Path(__file__).resolve().parents[4]


def test_every_name_and_test_exists():
    text = (ROOT / "docs" / "deeppool_paper.md").read_text()
    rows = re.findall(
        r"^\| (?:section|Fig|Table)[^|]*\|[^|]*\|([^|]*)\|$", text, flags=re.MULTILINE
    )
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(names) > 8
    assert [name for name in names if not resolves(name)] == []
    files = re.findall(r"`(tests/[^`]+)`", text)
    assert [name for name in files if not (ROOT / name).exists()] == []
