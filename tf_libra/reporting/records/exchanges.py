"""Clock exchanges in a rank's step records: messages and all-reduces."""

from collections.abc import Sequence

from tf_libra.reporting.records.clock_sync import SharedExchange
from tf_libra.reporting.records.step import StepRecord


def shared_exchanges(steps: Sequence[StepRecord]) -> list[SharedExchange]:
    """Return every exchange of these steps, with equal keys on all ranks."""
    messages = [
        SharedExchange((step.function, step.plan, step.step, "messages", index), sent, arrived)
        for step in steps
        for index, (sent, arrived) in enumerate(step.exchanges_ns)
    ]
    return messages + [
        SharedExchange(
            (step.function, step.plan, step.step, index, one.group, one.num_bytes),
            one.started_ns,
            # Without an awaited byte only the end is known.
            one.first_byte_ns if one.first_byte_ns >= one.started_ns else one.finished_ns,
        )
        for step in steps
        for index, one in enumerate(step.all_reduces)
    ]
