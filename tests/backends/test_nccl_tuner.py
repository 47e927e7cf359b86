"""The all-reduces of a plan under NCCL, without a GPU."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.backends import nccl_tuner
from tf_libra.backends.horovod_fusion import Fusion
from tf_libra.nccl import ChannelCounters, NcclAllReduce
from tf_libra.specs.plan import Plan, TensorGroup


def plan_of(
    *groups: tuple[list[int], int], dtypes: tuple[str, ...] | None = None, num_workers: int = 8
) -> Plan:
    """A plan of groups: the tensors' bytes and the threads."""
    sizes = [size for tensors, _ in groups for size in tensors]
    ends = [sum(len(tensors) for tensors, _ in groups[: i + 1]) for i in range(len(groups))]
    return Plan(
        groups=tuple(
            TensorGroup(end - len(tensors), end, threads)
            for (tensors, threads), end in zip(groups, ends, strict=True)
        ),
        tensor_names=tuple(f"t{i}" for i in range(len(sizes))),
        num_bytes=tuple(sizes),
        num_workers=num_workers,
        strategy="test",
        dtypes=dtypes,
    )


def test_plan_without_prepared_environment_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_NTHREADS", raising=False)
    with pytest.raises(ValueError, match=r"NCCL_NTHREADS.*prepare\(\)"):
        nccl_tuner.apply(plan_of(([4], 128)))
    monkeypatch.setenv("NCCL_NTHREADS", "128")
    nccl_tuner.apply(plan_of(([4], 128), ([8], 256)))
    try:
        assert nccl_tuner.counters().all_reduces == (0, 0)
        nccl_tuner.apply(plan_of(([0], 128)))
        assert nccl_tuner.counters().all_reduces == ()
    finally:
        nccl_tuner.clear()


# Groups as Horovod all-reduces them


def test_each_group_is_one_all_reduce() -> None:
    fusion = Fusion(buffer_bytes=100, padding=16)
    plan = plan_of(([20, 4], 256), ([7], 128), ([0, 0], 128), ([40, 40, 40], 512))
    assert nccl_tuner.all_reduces(plan, 128, fusion) == (
        NcclAllReduce(group=0, num_bytes=24, padded_bytes=48, num_channels=2),
        NcclAllReduce(group=1, num_bytes=7, padded_bytes=7, num_channels=1),
        NcclAllReduce(group=3, num_bytes=80, padded_bytes=96, num_channels=4),
        NcclAllReduce(group=3, num_bytes=40, padded_bytes=40, num_channels=4),
    )
    assert [a.num_bytes for a in nccl_tuner.all_reduces(plan, 128, Fusion())] == [24, 7, 120]


def test_tensor_larger_than_the_buffer_is_alone() -> None:
    plan = plan_of(([8, 200, 8, 8], 128))
    parts = nccl_tuner.all_reduces(plan, 128, Fusion(buffer_bytes=64))
    assert [part.num_bytes for part in parts] == [8, 200, 16]


def test_each_dtype_is_one_all_reduce() -> None:
    plan = plan_of(([8, 2, 16, 4], 128), dtypes=("float32", "float16", "float32", "float16"))
    parts = nccl_tuner.all_reduces(plan, 128, Fusion(padding=16))
    assert [(part.num_bytes, part.padded_bytes) for part in parts] == [(24, 32), (6, 32)]


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.integers(0, 100),
    st.sampled_from([1, 16]),
)
def test_all_reduces_have_every_byte_and_fit_the_buffer(
    sizes: list[int], buffer_bytes: int, padding: int
) -> None:
    parts = nccl_tuner.all_reduces(plan_of((sizes, 128)), 128, Fusion(buffer_bytes, padding))
    assert sum(part.num_bytes for part in parts) == sum(sizes)
    assert all(
        part.padded_bytes <= buffer_bytes or part.padded_bytes == part.num_bytes for part in parts
    )
    # As few parts as filling in order can make: two neighbours never fit together.
    for left, right in itertools.pairwise(parts):
        assert left.padded_bytes + right.padded_bytes + 2 * padding > buffer_bytes


def test_counters_are_described() -> None:
    zero = ChannelCounters(**{field.name: 0 for field in dataclasses.fields(ChannelCounters)[:-1]})
    assert zero.describe() == "NCCL has sent no request to the tuner yet"
    some = dataclasses.replace(zero, interface_version=5, requests=10, applied=10)
    assert some.describe() == (
        "NCCL sent 10 requests (tuner interface v5): 10 got the plan's channels,"
        " 0 were left to NCCL"
    )
    more = dataclasses.replace(some, requests=13, passed_over=3, unknown_size=3, out_of_order=1)
    assert more.describe().endswith(
        "3 were left to NCCL (3 of a size that is not in the plan, 1 of the plan's out of order)"
    )
