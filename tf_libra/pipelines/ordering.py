"""The order in which ops of a trace can be computed."""

from collections.abc import Sequence
from typing import Any


def in_order(created: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Ops, each behind what it takes; and by place, since when it or what takes it is there.

    Args:
        created: ops in the order of creation.
    """
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
                waiting += missing
                continue
            waiting.pop()
            if one.name not in done:
                done.add(one.name)
                ops.append(one)
                since.append(number)
    return ops, since
