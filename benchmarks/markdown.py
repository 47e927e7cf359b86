"""Markdown: tables, pictures, and blocks between the marks of a document.

A mark is a line `<!-- begin NAME -->`; the text up to `<!-- end NAME -->` is replaced.
"""

import re
from collections.abc import Sequence
from pathlib import Path

_BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def fill(
    document: str,
    blocks: dict[str, str],
    prefix: str = "",
    others: str | tuple[str, ...] = (),
) -> str:
    """Returns the document with the blocks between their marks.

    Args:
      prefix: of the marks that are replaced; marks without the prefix are another program's.
      others: prefixes of marks that are another program's, too.

    Raises:
      ValueError: a block has no mark, or a mark no block.
    """
    found = (name for _, name, _ in _BLOCK.findall(document))
    marks = {name for name in found if name.startswith(prefix) and not name.startswith(others)}
    if marks != set(blocks):
        raise ValueError(f"the document's marks must be {sorted(blocks)}; they are {sorted(marks)}")

    def replaced(match: re.Match[str]) -> str:
        text = blocks.get(match[2])
        return match[0] if text is None else f"{match[1]}{text}{match[3]}"

    return _BLOCK.sub(replaced, document)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def picture(text: str, path: Path, document: Path) -> str:
    """A Markdown image, by its path from the document."""
    return f"\n![{text}]({path.relative_to(document.parent)})\n"
