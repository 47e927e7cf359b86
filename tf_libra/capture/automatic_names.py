"""Names that Keras numbers automatically, matched between ranks.

Keras calls the first dense layer of a process `dense` and the next one `dense_1`. A rank that has
built another model before has other numbers for the same layers, in the same order.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

_WORD_OR_SEPARATOR = re.compile(r"[^/_#]+|[/_#]")


def renames(own: Sequence[str], reference: Sequence[str]) -> dict[str, str]:
    """Maps names to the names of another rank that differ only in automatic numbers.

    Names that are equal without their numbers are matched in numeric order, if both ranks have
    the same number of them.

    Args:
        own: distinct names of this rank.
        reference: distinct names of the other rank.

    Returns:
        The other rank's name for each own name that differs and has a match.
    """
    theirs = _group_by_form(reference)
    found: dict[str, str] = {}
    for form, names in _group_by_form(own).items():
        if len(theirs.get(form, ())) == len(names):
            pairs = zip(names, theirs[form], strict=True)
            found.update({name: other for name, other in pairs if name != other})
    return found


def renames_to_first(ranks: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Maps each rank's names to those of rank 0; see `renames`."""
    return [renames(names, ranks[0]) for names in ranks]


def with_names_of(reference: Sequence[str], values: Mapping[str, T]) -> dict[str, T]:
    """Returns named values under the names of another rank; see `renames`."""
    found = renames(list(values), reference)
    return {found.get(name, name): value for name, value in values.items()}


def without_numbers(name: str) -> str:
    """Returns the name without automatic numbers: "dense/bias" for "dense_1/bias"."""
    return _split(name)[0]


def _group_by_form(names: Sequence[str]) -> dict[str, list[str]]:
    """Groups names by their form without numbers; sorts each group by the numbers."""
    groups: dict[str, list[tuple[tuple[int, ...], str]]] = defaultdict(list)
    for name in names:
        form, numbers = _split(name)
        groups[form].append((numbers, name))
    return {form: [name for _, name in sorted(group)] for form, group in groups.items()}


def _split(name: str) -> tuple[str, tuple[int, ...]]:
    """Splits "a_2/b" into "a/b" and the number after each word, -1 for none."""
    form = ""
    numbers: list[int] = []
    parts = _WORD_OR_SEPARATOR.findall(name)
    for index, part in enumerate(parts):
        is_number = part.isdecimal() and index > 1 and parts[index - 1] == "_"
        if is_number and numbers and numbers[-1] == -1:
            numbers[-1] = int(part)
            form = form.removesuffix("_")
            continue
        form += part
        if part not in "/_#":
            numbers.append(-1)
    return form, tuple(numbers)
