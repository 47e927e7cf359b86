import dataclasses
import json
from typing import ClassVar

import numpy as np
import pytest

import tf_libra
from tf_libra import strategies
from tf_libra.model_parallel.commands.burst import main
from tf_libra.model_parallel.planning import burst
from tf_libra.model_parallel.planning.burst import (
    BY_NAME,
    BurstDraft,
    SearchLinear,
    make_burst_plan,
)
from tf_libra.model_parallel.planning.burst.data_parallel_strategy import everywhere
from tf_libra.model_parallel.planning.burst.planner import compare
from tf_libra.model_parallel.planning.burst.strategy import REGISTRY

SCALING = tf_libra.ScalingProfile.chain([1, 2], [[4.0, 2.5]], [[0.0, 0.5]], [])


def test_a_name_is_the_strategy_with_its_defaults():
    assert {"deeppool", "data-parallel", "search-linear"} <= set(burst.BY_NAME)
    for name, kind in burst.BY_NAME.items():
        plan = tf_libra.make_burst_plan(SCALING, name)
        assert plan.strategy == name
        assert tf_libra.make_burst_plan(SCALING, kind()) == plan


def test_argument_of_the_call_overrides_that_of_the_strategy():
    tight = strategies.DeepPool(max_amplification=1.0)
    by_object = tf_libra.make_burst_plan(SCALING, tight)
    assert by_object == tf_libra.make_burst_plan(SCALING, max_amplification=1.0)
    assert (by_object.num_devices, by_object.max_amplification) == ((1,), 1.0)
    wide = tf_libra.make_burst_plan(SCALING, tight, max_amplification=2.0)
    assert (wide.num_devices, wide.max_amplification) == ((2,), 2.0)
    two = burst.DataParallel(num_devices=2)
    assert tf_libra.make_burst_plan(SCALING, two).num_devices == (2,)
    assert tf_libra.make_burst_plan(SCALING, two, num_devices=1).num_devices == (1,)


@pytest.mark.parametrize("name", ["deeppool", "search-linear"])
def test_an_argument_that_it_does_not_have_is_named(name):
    with pytest.raises(ValueError, match=f"^num_devices .* {name}, .* got 2"):
        tf_libra.make_burst_plan(SCALING, name, num_devices=2)
    with pytest.raises(ValueError, match=r"max_amplification.*1,.*0"):
        burst.BY_NAME[name](max_amplification=0)


def test_a_planner_from_outside(tmp_path, capsys):
    @burst.register
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class OneDevice(burst.Limited):
        name: ClassVar[str] = "one-device"
        place: int = 0

        def draft(self, scaling):
            return burst.BurstDraft(everywhere(scaling, self.place), notes=("a toy",))

    try:
        plan = tf_libra.make_burst_plan(SCALING, "one-device")
        assert (plan.num_devices, plan.notes) == ((1,), ("a toy",))
        path = tmp_path / "scaling.json"
        path.write_text(SCALING.to_json())
        assert main(["plan", f"--profile={path}", "--strategy=one-device"]) == 0
        assert tf_libra.BurstPlan.from_json(capsys.readouterr().out) == plan
        assert main(["plan", f"--profile={path}", "--strategy=one-device", "--place=1"]) == 0
        assert tf_libra.BurstPlan.from_json(capsys.readouterr().out).num_devices == (2,)
        assert main(["compare", f"--profile={path}", "--place=1", "--json"]) == 0
        rows = {row["plan"]: row for row in json.loads(capsys.readouterr().out)["plans"]}
        assert rows["one-device, no limit"]["devices"] == {"2": 1}
        deeppool = dataclasses.make_dataclass(
            "Other", [], bases=(OneDevice,), namespace={"name": "deeppool"}, frozen=True
        )
        with pytest.raises(ValueError, match=r"name.*'deeppool'"):
            burst.register(deeppool)
    finally:
        REGISTRY.forget("one-device")


def test_missing_members_of_a_planner_are_named():
    bare = dataclasses.make_dataclass("Bare", [], namespace={"name": "bare"}, frozen=True)
    reported = "must have max_amplification, device_counts, num_devices, draft.* inherit .*Limited"
    with pytest.raises(ValueError, match=reported):
        burst.register(bare)


def test_device_counts_of_a_strategy_are_those_of_the_profile():
    same = strategies.DeepPool(device_counts=(1, 2))
    assert tf_libra.make_burst_plan(SCALING, same) == tf_libra.make_burst_plan(SCALING)
    with pytest.raises(ValueError, match=r"device_counts.*\(1, 2\)"):
        tf_libra.make_burst_plan(SCALING, strategies.DeepPool(device_counts=(1, 4)))


COMPARED = tf_libra.ScalingProfile.chain(
    [1, 2], [[4.0, 2.5]] * 2, [[0.0, 0.5]] * 2, np.zeros((1, 2, 2))
)


@dataclasses.dataclass(frozen=True)
class OneDevice:
    """Strategy without a limit and without a number of devices."""

    name: ClassVar[str] = "one-device"
    max_amplification: ClassVar[None] = None
    device_counts: ClassVar[None] = None
    num_devices: ClassVar[None] = None

    def draft(self, scaling):
        return BurstDraft(everywhere(scaling, 0))


def test_rows_are_of_every_scale_and_limit() -> None:
    rows = compare(COMPARED, {name: kind() for name, kind in BY_NAME.items()}, [1.2, 2.0])
    assert [row.name for row in rows] == [
        *("data-parallel, 1", "data-parallel, 2"),
        *("deeppool, 1.2", "deeppool, 2", "deeppool, no limit"),
        *("search-linear, 1.2", "search-linear, 2", "search-linear, no limit"),
    ]
    assert [row.num_devices for row in rows] == [1, 2, *[None] * 6]
    assert rows[1].plan == make_burst_plan(COMPARED, "data-parallel", num_devices=2)
    assert rows[2].plan == make_burst_plan(COMPARED, "deeppool", max_amplification=1.2)
    assert rows[4].plan == make_burst_plan(COMPARED, "deeppool")
    assert not any(row.problem for row in rows)


def test_strategy_without_both_arguments_has_one_row() -> None:
    REGISTRY.register(OneDevice)
    try:
        [row] = compare(COMPARED, {"alone": OneDevice()}, [1.2, 2.0])
        assert row.name == "alone" and row.plan.num_devices == (1, 1)
    finally:
        REGISTRY.forget("one-device")


def test_strategy_without_a_plan_has_a_reason_and_none_at_all_raises() -> None:
    forked = tf_libra.ScalingProfile(
        COMPARED.device_counts,
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
    assert "chain" in rows[-1].problem
    with pytest.raises(ValueError, match="chain"):
        compare(forked, {"search-linear": SearchLinear()}, [2.0])


def test_a_limit_that_allows_no_plan_is_rejected() -> None:
    """The error also appears if data parallelism with fixed devices has a plan."""
    with pytest.raises(ValueError, match=r"max_amplification.*1,.*0\.5"):
        compare(COMPARED, {name: kind() for name, kind in BY_NAME.items()}, [2.0, 0.5])
