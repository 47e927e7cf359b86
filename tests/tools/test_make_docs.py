"""Generated pages are up to date, and marks of blocks are checked."""

import pytest

from tools import make_docs


def test_generated_pages_are_fresh() -> None:
    """`make docs` mends a failure."""
    stale = [
        page
        for page, text in make_docs.generated().items()
        if (make_docs.ROOT / page).read_text() != text
    ]
    assert stale == []


def test_page_without_the_mark_of_a_block_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"page.md: .*'table'"):
        make_docs.filled("page.md", {"table": lambda: "new\n"}, "no marks\n")


def test_block_is_replaced_between_its_marks() -> None:
    text = "a\n<!-- generated: table -->\nold\n<!-- end of table -->\nb\n"
    found = make_docs.filled("page.md", {"table": lambda: "new\n"}, text)
    assert found == text.replace("old", "new")
