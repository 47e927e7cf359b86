"""How far the clocks of several hosts are apart, from what their ranks have sent each other.

When a plan comes into force all ranks exchange some small messages, as NTP does, and every
all-reduce is such an exchange, too: each rank knows when it began to send, and when the last of
the others' first bytes had come. A byte does not come before it is sent, so rank j's clock minus
rank 0's, o, is bounded from both sides by every exchange:

    sent_j - arrived_0 <= o <= arrived_j - sent_0

The tightest bounds over all exchanges leave the least way there and the least way back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SharedExchange:
    """One exchange as one rank saw it, in nanoseconds of its host's clock.

    Attributes:
        key: the same on every rank for the same exchange, and for no other.
        sent_ns: when the rank began.
        arrived_ns: when every other rank had sent something.
    """

    key: tuple[object, ...]
    sent_ns: int
    arrived_ns: int


@dataclass(frozen=True)
class ClockOffset:
    """A rank's clock minus that of the rank it is compared with.

    Attributes:
        offset_ns: to be subtracted from the rank's times. Zero where that is possible: ranks of
            one host share a clock, and nothing says then that those of several hosts differ.
        lower_ns: bound from below.
        upper_ns: bound from above. Below `lower_ns` where the clocks have drifted meanwhile.
    """

    offset_ns: int
    lower_ns: int
    upper_ns: int

    @property
    def error_ns(self) -> int:
        """The offset is known to so much, to either side."""
        return max(abs(self.upper_ns - self.offset_ns), abs(self.offset_ns - self.lower_ns))


def clock_offset(
    reference: Iterable[SharedExchange], other: Iterable[SharedExchange]
) -> ClockOffset | None:
    """The offset of `other`'s clock; None where the two share no exchange."""
    by_key = {one.key: one for one in reference}
    pairs = [(by_key[one.key], one) for one in other if one.key in by_key]
    if not pairs:
        return None
    lower = max(theirs.sent_ns - ours.arrived_ns for ours, theirs in pairs)
    upper = min(theirs.arrived_ns - ours.sent_ns for ours, theirs in pairs)
    middle = lower + (upper - lower) // 2
    return ClockOffset(0 if lower <= 0 <= upper else middle, lower, upper)


def clock_offsets(
    by_rank: Mapping[int, Sequence[SharedExchange]],
) -> dict[int, ClockOffset | None]:
    """The offset of every rank's clock to that of the lowest rank; the lowest has zero."""
    first = min(by_rank)
    return {
        rank: ClockOffset(0, 0, 0) if rank == first else clock_offset(by_rank[first], shared)
        for rank, shared in sorted(by_rank.items())
    }
