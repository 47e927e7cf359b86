"""Clock offsets between hosts, from exchanges of their ranks.

When a plan is activated, all ranks exchange small messages, as NTP does. Every all-reduce is such
an exchange, too: each rank knows when it began to send and when the last rank's first byte had
arrived. A byte arrives after it is sent, so every exchange bounds the offset o of rank j's clock to
rank 0's:

    sent_j - arrived_0 <= o <= arrived_j - sent_0

The tightest bounds over all exchanges come from the fastest transfers in both directions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tf_libra.reporting.records.step import StepRecord


@dataclass(frozen=True)
class SharedExchange:
    """One rank's times of an exchange, in nanoseconds of its host's clock.

    Attributes:
        key: unique per exchange and equal on every rank.
        sent_ns: begin of the exchange on this rank.
        arrived_ns: arrival of the last other rank's first byte.
    """

    key: tuple[object, ...]
    sent_ns: int
    arrived_ns: int


@dataclass(frozen=True)
class ClockOffset:
    """Offset of a rank's clock to the reference rank's.

    Attributes:
        offset_ns: value to subtract from the rank's times. 0 if the bounds allow it: ranks of one
            host share a clock, and the bounds do not show a difference.
        lower_ns: lower bound.
        upper_ns: upper bound; below `lower_ns` if the clocks have drifted.
    """

    offset_ns: int
    lower_ns: int
    upper_ns: int

    @property
    def error_ns(self) -> int:
        """Uncertainty of the offset, to either side."""
        return max(abs(self.upper_ns - self.offset_ns), abs(self.offset_ns - self.lower_ns))


def clock_offset(
    reference: Iterable[SharedExchange], other: Iterable[SharedExchange]
) -> ClockOffset | None:
    """Returns the offset of `other`'s clock; None without a shared exchange."""
    by_key = {exchange.key: exchange for exchange in reference}
    pairs = [(by_key[exchange.key], exchange) for exchange in other if exchange.key in by_key]
    if not pairs:
        return None
    lower = max(theirs.sent_ns - ours.arrived_ns for ours, theirs in pairs)
    upper = min(theirs.arrived_ns - ours.sent_ns for ours, theirs in pairs)
    middle = lower + (upper - lower) // 2
    return ClockOffset(0 if lower <= 0 <= upper else middle, lower, upper)


def clock_offsets(
    by_rank: Mapping[int, Sequence[SharedExchange]],
) -> dict[int, ClockOffset | None]:
    """Returns the offset of every rank's clock to the lowest rank's, which is 0."""
    first = min(by_rank)
    return {
        rank: ClockOffset(0, 0, 0) if rank == first else clock_offset(by_rank[first], shared)
        for rank, shared in sorted(by_rank.items())
    }


def shared_exchanges(steps: Sequence[StepRecord]) -> list[SharedExchange]:
    """Returns every exchange of these steps, with equal keys on all ranks."""
    messages = [
        SharedExchange((step.function, step.plan, step.step, "messages", index), sent, arrived)
        for step in steps
        for index, (sent, arrived) in enumerate(step.exchanges_ns)
    ]
    return messages + [
        SharedExchange(
            (step.function, step.plan, step.step, index, span.group, span.num_bytes),
            span.started_ns,
            # Without an awaited byte only the end is known.
            span.first_byte_ns if span.first_byte_ns >= span.started_ns else span.finished_ns,
        )
        for step in steps
        for index, span in enumerate(step.all_reduces)
    ]
