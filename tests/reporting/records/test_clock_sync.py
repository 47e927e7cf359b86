"""Offsets between clocks, from exchanges whose true times are known."""

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given

from tf_libra.reporting.records.clock_sync import (
    SharedExchange,
    clock_offset,
    clock_offsets,
    shared_exchanges,
)
from tf_libra.reporting.records.step import AllReduceSpan, StepRecord

Delays = list[tuple[int, int, int, int]]
# Of every exchange: when both ranks send, and what each byte takes, in true time.
delays = st.lists(st.tuples(*[st.integers(0, 10**9)] * 4), min_size=1, max_size=20)


def seen(exchanges: Delays, offset_ns: int) -> tuple[list[SharedExchange], list[SharedExchange]]:
    """Returns the exchanges that ranks 0 and 1 record if rank 1's clock is ahead by `offset_ns`."""
    ours, theirs = [], []
    for index, (sent_0, sent_1, to_0, to_1) in enumerate(exchanges):
        ours.append(SharedExchange((index,), sent_0, max(sent_0, sent_1 + to_0)))
        arrived_1 = max(sent_1, sent_0 + to_1)
        theirs.append(SharedExchange((index,), sent_1 + offset_ns, arrived_1 + offset_ns))
    return ours, theirs


@given(delays, st.integers(-(10**12), 10**12))
def test_true_offset_is_within_the_bounds(exchanges: Delays, offset_ns: int) -> None:
    found = clock_offset(*seen(exchanges, offset_ns))
    assert found is not None
    assert found.lower_ns <= offset_ns <= found.upper_ns
    assert found.lower_ns <= found.offset_ns <= found.upper_ns
    assert abs(found.offset_ns - offset_ns) <= found.error_ns


@given(delays)
def test_ranks_with_one_clock_have_offset_zero(exchanges: Delays) -> None:
    found = clock_offset(*seen(exchanges, 0))
    assert found is not None
    assert found.offset_ns == 0


def test_fast_exchange_gives_tight_bounds() -> None:
    slow, quick = (0, 400_000, 10**6, 10**8), (10**9, 10**9 + 5_000, 20_000, 30_000)
    found = clock_offset(*seen([slow, quick], 7 * 10**9))
    assert found is not None
    assert abs(found.offset_ns - 7 * 10**9) <= 30_000
    assert found.error_ns <= 30_000


def test_drifting_clocks_have_the_middle_offset() -> None:
    ours, theirs = seen([(0, 0, 10, 10), (1000, 1000, 10, 10)], 0)
    late = [theirs[0], SharedExchange((1,), theirs[1].sent_ns + 90, theirs[1].arrived_ns + 90)]
    found = clock_offset(ours, late)
    assert found is not None
    assert (found.lower_ns, found.upper_ns) == (80, 10)
    assert found.offset_ns == 45


def test_ranks_without_shared_exchange_have_no_offset() -> None:
    ours, theirs = seen([(0, 0, 1, 1)], 0)
    other = [SharedExchange(("other",), their.sent_ns, their.arrived_ns) for their in theirs]
    assert clock_offset(ours, other) is None
    offsets = clock_offsets({3: theirs, 0: ours, 7: other})
    assert list(offsets) == [0, 3, 7]
    assert offsets[0] is not None and offsets[0].offset_ns == 0
    assert offsets[3] is not None
    assert offsets[7] is None


WAITED = AllReduceSpan(0, 1, 64, 100, 110, 150, 190)
ALONE = AllReduceSpan(1, 1, 32, 120, 200, 0, 240)  # no byte was awaited
STEP = StepRecord("step", "ab", 0, 7, 90, 250, (WAITED, ALONE), exchanges_ns=((10, 30), (40, 60)))


def test_messages_and_all_reduces_are_exchanges() -> None:
    found = shared_exchanges([STEP])
    assert [(message.sent_ns, message.arrived_ns) for message in found] == [
        (10, 30),
        (40, 60),
        (110, 150),
        (200, 240),
    ]
    assert len({message.key for message in found}) == 4


def test_keys_are_equal_across_ranks_and_unique_per_step() -> None:
    mine, theirs = shared_exchanges([STEP]), shared_exchanges([replace(STEP, rank=1)])
    assert [message.key for message in mine] == [their.key for their in theirs]
    for other in (replace(STEP, step=8), replace(STEP, plan="cd"), replace(STEP, function="eval")):
        keys = {shared_exchange.key for shared_exchange in shared_exchanges([other])}
        assert keys.isdisjoint(message.key for message in mine)
