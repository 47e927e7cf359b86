"""Bytes that are sent without zero blocks of a size."""

import numpy as np
import pytest

from benchmarks.zero_blocks import sent_share


def test_blocks_travel_that_a_rank_has_and_those_of_the_sum() -> None:
    ranks = [np.zeros(1024, np.uint8) for _ in range(2)]
    ranks[0][3] = 1  # in the first block of 128 bytes, of one rank alone
    ranks[1][[600, 1023]] = 128  # the sign of a negative zero is content
    parts, sums = (1 + 2) / 16, 3 / 8
    assert sent_share(ranks, 128) == pytest.approx((parts + sums) / 2 + 1 / 1024)
    assert sent_share(ranks, 1024) == pytest.approx(1 + 1 / 8192)


def test_last_block_may_be_short() -> None:
    ranks = [np.zeros(130, np.uint8) for _ in range(2)]
    ranks[0][129] = ranks[1][129] = 1
    assert sent_share(ranks, 64) == pytest.approx(1 / 3 + 1 / 512)
