from dataclasses import replace

from tf_libra.reporting.records.exchanges import shared_exchanges
from tf_libra.reporting.records.step import AllReduceSpan, StepRecord

WAITED = AllReduceSpan(0, 1, 64, 100, 110, 150, 190)
ALONE = AllReduceSpan(1, 1, 32, 120, 200, 0, 240)  # no byte was awaited
STEP = StepRecord("step", "ab", 0, 7, 90, 250, (WAITED, ALONE), exchanges_ns=((10, 30), (40, 60)))


def test_messages_and_all_reduces_are_exchanges() -> None:
    found = shared_exchanges([STEP])
    assert [(one.sent_ns, one.arrived_ns) for one in found] == [
        (10, 30),
        (40, 60),
        (110, 150),
        (200, 240),
    ]
    assert len({one.key for one in found}) == 4


def test_ranks_name_an_exchange_alike_and_steps_apart() -> None:
    mine, theirs = shared_exchanges([STEP]), shared_exchanges([replace(STEP, rank=1)])
    assert [one.key for one in mine] == [one.key for one in theirs]
    for other in (replace(STEP, step=8), replace(STEP, plan="cd"), replace(STEP, function="eval")):
        keys = {one.key for one in shared_exchanges([other])}
        assert keys.isdisjoint(one.key for one in mine)
