"""The lanes' backend: as many concurrent threads as there may be lanes, and no more."""

import pytest

from tf_libra import config
from tf_libra.backends.lanes_backend import MAX_LANES, Lanes
from tf_libra.specs.plan import Plan, TensorGroup


def plan(*threads: int, streams: int = 1) -> Plan:
    groups = tuple(
        TensorGroup(i, i + 1, count, stream=i % streams) for i, count in enumerate(threads)
    )
    names = tuple(f"t{i}" for i in range(len(threads)))
    sizes = (4,) * len(threads)
    return Plan(
        groups=groups, tensor_names=names, num_bytes=sizes, num_workers=2, strategy="by hand"
    )


def test_lanes_execute_unless_another_engine_is_requested() -> None:
    assert (
        config.DataParallelOptions().backend
        == config.DataParallelOptions(engine="lanes").backend
        == Lanes()
    )


def test_a_group_has_at_most_all_lanes() -> None:
    Lanes().check_plan(plan(1, MAX_LANES))
    with pytest.raises(ValueError, match=rf"groups\[1\]\.num_threads is {MAX_LANES + 1};"):
        Lanes().check_plan(plan(1, MAX_LANES + 1))


def test_streams_have_at_most_all_lanes_together() -> None:
    half = MAX_LANES // 2
    Lanes().check_plan(plan(half, MAX_LANES - half, streams=2))
    with pytest.raises(ValueError, match=f"2 streams .*{MAX_LANES + 1} lanes"):
        Lanes().check_plan(plan(half, MAX_LANES - half + 1, streams=2))
