"""Slurm's host lists, against a list that is written out."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.coordination.launcher_hosts import expand_nodes

WORD = st.text("abcxyz-.", min_size=1, max_size=4)


@st.composite
def bracket(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A bracketed part, and the numbers that it stands for."""
    texts, numbers = [], []
    for _ in range(draw(st.integers(1, 3))):
        first, count = draw(st.integers(0, 99)), draw(st.integers(1, 4))
        width = draw(st.integers(1, 4))
        low, high = f"{first:0{width}}", f"{first + count - 1:0{width}}"
        texts.append(low if count == 1 and draw(st.booleans()) else f"{low}-{high}")
        numbers += [f"{number:0{len(low)}}" for number in range(first, first + count)]
    return f"[{','.join(texts)}]", numbers


@st.composite
def host(draw: st.DrawFn) -> tuple[str, list[str]]:
    """One entry of a list, and its hosts."""
    parts = [(word := draw(WORD), [word])]
    for _ in range(draw(st.integers(0, 2))):
        parts.append(draw(bracket()))
        word = draw(WORD)
        parts.append((word, [word]))
    text = "".join(part for part, _ in parts)
    return text, [
        "".join(name_parts) for name_parts in itertools.product(*(names for _, names in parts))
    ]


@given(st.lists(host(), min_size=1, max_size=4))
def test_list_stands_for_its_hosts(entries: list[tuple[str, list[str]]]) -> None:
    text = ",".join(entry for entry, _ in entries)
    assert expand_nodes(text, "X") == [name for _, names in entries for name in names]


@pytest.mark.parametrize(
    "text", ["", ",", "a,", "a[", "a]", "a[]", "a[1-]", "a[2-1]", "a[x]", "a[1[2]]", "a b", "a[1,]"]
)
def test_other_lists_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="X must list hosts"):
        expand_nodes(text, "X")


@pytest.mark.parametrize("text", ["a[0-99999999999]", "a[0-999]b[0-999]"])
def test_list_of_too_many_hosts_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="X must list at most"):
        expand_nodes(text, "X")
