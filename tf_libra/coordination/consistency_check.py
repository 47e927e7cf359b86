"""Check that all ranks have the same configuration, before any gradient moves."""

from collections.abc import Mapping, Sequence
from typing import Any

from tf_libra.coordination.control_plane import Control

Statement = Mapping[str, Any]

NAMES_ADVICE = (
    "; if only names differ, name layers and models explicitly, or call"
    " keras.utils.clear_session() on every rank before they are built"
)


def agree(control: Control, statement: Statement) -> None:
    """Compares this rank's statement with every other rank's.

    Args:
        control: reaches the other ranks.
        statement: JSON values, in the order in which differences matter.

    Raises:
        ValueError: on every rank, with the same message: the first difference between two ranks.
        EngineError: a rank did not answer.
    """
    check_equal(exchange(control, statement))


def exchange(control: Control, statement: Statement) -> list[dict[str, Any]]:
    """Returns the statements of all ranks, by rank.

    Args:
        control: reaches the other ranks.
        statement: statement of this rank, as for `agree`.

    Raises:
        EngineError: a rank did not answer.
    """
    # JSON objects would lose the order, so the statement is sent as a list of pairs.
    everyone = control.all_gather([[key, value] for key, value in statement.items()])
    return [dict(pairs) for pairs in everyone]


def check_equal(statements: Sequence[Statement], advice: str = "") -> None:
    """Raises `ValueError` that names the first difference between ranks, with advice."""
    difference = first_difference(statements)
    if difference is not None:
        raise ValueError(f"the ranks do not agree, nothing was exchanged: {difference}{advice}")


def first_difference(statements: Sequence[Statement]) -> str | None:
    """Returns the first difference between rank 0 and another rank; None if there is none.

    Args:
        statements: one statement per rank.
    """
    for key in statements[0]:
        for rank, other in enumerate(statements[1:], start=1):
            if other.get(key) != statements[0][key]:
                where, left, right = _narrow(key, statements[0][key], other.get(key))
                return f"{where} is {left!r} on rank 0 and {right!r} on rank {rank}"
    return None


def _narrow(where: str, left: Any, right: Any) -> tuple[str, Any, Any]:
    """Returns the first difference inside two values, with its place."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *(key for key in right if key not in left)]:
            if left.get(key) != right.get(key):
                return _narrow(f"{where}[{key!r}]", left.get(key), right.get(key))
    if isinstance(left, list) and isinstance(right, list):
        for i, (ours, theirs) in enumerate(zip(left, right, strict=False)):
            if ours != theirs:
                return _narrow(f"{where}[{i}]", ours, theirs)
        if len(left) != len(right):
            return f"number of {where}", len(left), len(right)
    return where, left, right
