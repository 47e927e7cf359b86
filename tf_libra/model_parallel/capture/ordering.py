"""The order in which ops of a trace can be computed."""

from collections.abc import Sequence
from typing import Any


def in_order(created: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Ops, each behind what it takes; and by place, since when it or what takes it is there.

    What else could come in any order comes in that of creation, the same on every rank.

    Args:
        created: ops in the order of creation.
    """
    number_of = {op.name: number for number, op in enumerate(created)}
    ops: list[Any] = []
    since: list[int] = []
    done: set[str] = set()
    for number, op in enumerate(created):
        waiting = [op]
        while waiting:
            one = waiting[-1]
            before = [*(tensor.op for tensor in one.inputs), *one.control_inputs]
            missing = [other for other in before if other.name not in done]
            if missing and one.name not in done:
                # The one that is looked at next is the last.
                waiting += sorted(missing, key=lambda op: number_of[op.name], reverse=True)
                continue
            waiting.pop()
            if one.name not in done:
                done.add(one.name)
                ops.append(one)
                since.append(number)
    return ops, since
