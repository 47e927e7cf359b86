"""Names that Keras numbers by itself, matched between ranks.

Keras calls the first dense layer of a process `dense`, the next one `dense_1`. A rank that has
built another model before has other numbers for the same layers, in the same order.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

_WORD_OR_SEPARATOR = re.compile(r"[^/_#]+|[/_#]")


def renames(own: Sequence[str], reference: Sequence[str]) -> dict[str, str]:
    """Maps names to those of another rank from which they differ in automatic numbers alone.

    Names that are equal without their numbers are matched in the order of their numbers, if both
    ranks have equally many of them.

    Args:
        own: names of this rank, each once.
        reference: names of the other rank, each once.

    Returns:
        The name of the other rank for each name of this one that differs and has a match.
    """
    theirs = _by_form(reference)
    matched: dict[str, str] = {}
    for form, names in _by_form(own).items():
        if len(theirs.get(form, ())) == len(names):
            pairs = zip(names, theirs[form], strict=True)
            matched.update({name: other for name, other in pairs if name != other})
    return matched


def matched(names: Sequence[str], reference: Sequence[str]) -> list[str]:
    """Return names with each match replaced by the other rank's name; see `renames`."""
    found = renames(names, reference)
    return [found.get(name, name) for name in names]


def without_numbers(name: str) -> str:
    """Returns the name without automatic numbers: "dense/bias" for "dense_1/bias"."""
    return _split(name)[0]


def _by_form(names: Sequence[str]) -> dict[str, list[str]]:
    """Groups names by what remains without numbers; sorts each group by those."""
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
