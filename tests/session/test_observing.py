"""Times of a step while somebody sets the clock."""

import time

import pytest

from tf_libra.model.telemetry import AllReduceRecord
from tf_libra.session.observing import lie_within, timed

HOUR_NS = 3600 * 10**9
CALLED_NS = (10**18, 10**18 + 50_000_000)


def test_call_lasts_as_long_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()

    def set_back() -> str:
        monkeypatch.setattr(time, "time_ns", lambda: now_ns - HOUR_NS)
        return "result"

    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    result, (start_ns, stop_ns) = timed(set_back)
    assert result == "result"
    assert start_ns == now_ns
    assert 0 <= stop_ns - start_ns < HOUR_NS


@pytest.mark.parametrize(
    ("shift_ns", "within"),
    [(0, True), (1_000_000, True), (-HOUR_NS, False), (HOUR_NS, False), (40_000_000, False)],
)
def test_step_in_which_the_clock_was_set_is_told_apart(shift_ns: int, within: bool) -> None:
    start_ns = CALLED_NS[0] + shift_ns
    record = AllReduceRecord(
        step=1,
        sequence=0,
        plan="plan",
        group=0,
        num_threads=1,
        num_bytes=4,
        enqueued_ns=start_ns,
        started_ns=start_ns + 1_000_000,
        first_byte_ns=start_ns + 2_000_000,
        finished_ns=start_ns + 45_000_000,
        tensor_names=("w",),
    )
    assert lie_within([record], CALLED_NS) is within
    assert lie_within([], CALLED_NS)
