"""Bursts of all strategies side by side."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

import tf_libra
from tf_libra.model_parallel.planning.burst import (
    BY_NAME,
    BurstDraft,
    SearchLinear,
    make_burst_plan,
)
from tf_libra.model_parallel.planning.burst.compare import compare
from tf_libra.model_parallel.planning.burst.data_parallel_strategy import everywhere
from tf_libra.model_parallel.planning.burst.strategy import REGISTRY

SCALING = tf_libra.ScalingProfile.chain(
    [1, 2], [[4.0, 2.5]] * 2, [[0.0, 0.5]] * 2, np.zeros((1, 2, 2))
)


@dataclasses.dataclass(frozen=True)
class OneDevice:
    """Takes neither a limit nor a number of devices."""

    name: ClassVar[str] = "one-device"
    max_amplification: ClassVar[None] = None
    device_counts: ClassVar[None] = None
    num_devices: ClassVar[None] = None

    def draft(self, scaling):
        return BurstDraft(everywhere(scaling, 0))


def test_rows_are_of_every_scale_and_limit() -> None:
    rows = compare(SCALING, {name: kind() for name, kind in BY_NAME.items()}, [1.2, 2.0])
    assert [row.name for row in rows] == [
        *("data-parallel, 1", "data-parallel, 2"),
        *("deeppool, 1.2", "deeppool, 2", "deeppool, no limit"),
        *("search-linear, 1.2", "search-linear, 2", "search-linear, no limit"),
    ]
    assert [row.num_devices for row in rows] == [1, 2, *[None] * 6]
    assert rows[1].plan == make_burst_plan(SCALING, "data-parallel", num_devices=2)
    assert rows[2].plan == make_burst_plan(SCALING, "deeppool", max_amplification=1.2)
    assert rows[4].plan == make_burst_plan(SCALING, "deeppool")
    assert not any(row.problem for row in rows)


def test_who_takes_neither_has_one_row() -> None:
    REGISTRY.register(OneDevice)
    try:
        [row] = compare(SCALING, {"alone": OneDevice()}, [1.2, 2.0])
        assert row.name == "alone" and row.plan.num_devices == (1, 1)
    finally:
        REGISTRY.forget("one-device")


def test_who_has_no_plan_says_why_and_all_together_raise() -> None:
    forked = tf_libra.ScalingProfile(
        SCALING.device_counts,
        ("a", "b", "c", "d"),
        ((0, 1), (0, 2), (1, 3), (2, 3)),
        np.array([[4.0, 2.5]] * 4),
        np.zeros((4, 2)),
        np.zeros((4, 2, 2)),
    )
    rows = compare(forked, {name: kind() for name, kind in BY_NAME.items()}, [2.0])
    assert {row.name for row in rows if row.plan is None} == {
        "search-linear, 2",
        "search-linear, no limit",
    }
    assert "takes a chain of layers" in rows[-1].problem
    with pytest.raises(ValueError, match="takes a chain of layers"):
        compare(forked, {"search-linear": SearchLinear()}, [2.0])


def test_a_limit_that_allows_no_plan_is_refused() -> None:
    """Also where data parallelism, which is given its devices, could plan."""
    with pytest.raises(ValueError, match=r"max_amplification must be at least 1, got 0\.5"):
        compare(SCALING, {name: kind() for name, kind in BY_NAME.items()}, [2.0, 0.5])
