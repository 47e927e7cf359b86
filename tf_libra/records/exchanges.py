"""What a rank's steps tell about its clock: the messages and all-reduces that it shared."""

from collections.abc import Sequence

from tf_libra.records.clocks import SharedExchange
from tf_libra.records.step import StepRecord


def shared_exchanges(steps: Sequence[StepRecord]) -> list[SharedExchange]:
    """Every exchange of these steps, named alike on every rank that took part."""
    messages = [
        SharedExchange((step.function, step.plan, step.step, "messages", index), sent, arrived)
        for step in steps
        for index, (sent, arrived) in enumerate(step.exchanges_ns)
    ]
    return messages + [
        SharedExchange(
            (step.function, step.plan, step.step, index, one.group, one.num_bytes),
            one.started_ns,
            # Before the start: no byte was awaited, and the end is all that is known.
            one.first_byte_ns if one.first_byte_ns >= one.started_ns else one.finished_ns,
        )
        for step in steps
        for index, one in enumerate(step.all_reduces)
    ]
