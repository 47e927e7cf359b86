"""What engine="auto" decides: what lanes cannot do, or not without a copy, is Horovod's."""

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.backends import backend
from tf_libra.backends.choosing import Circumstances, choose


@pytest.mark.parametrize(
    ("found", "engine", "why"),
    [
        ({"world_size": 2}, "lanes", "CPUs of one host"),
        ({"world_size": 16, "num_hosts": 8}, "lanes", "CPUs of 8 hosts, over TCP"),
        ({"world_size": 2, "num_gpus": 1, "has_nccl": True}, "horovod", "NCCL"),
        ({"world_size": 2, "num_gpus": 1}, "lanes", "without NCCL"),
        ({"world_size": 2, "has_nccl": True}, "lanes", "CPUs"),
        ({"world_size": 2, "on_mpi": True, "names_interface": False}, "lanes", "one host"),
        (
            {"world_size": 4, "num_hosts": 2, "on_mpi": True, "fabrics": ("mlx5_0",)},
            "horovod",
            "which can use mlx5_0",
        ),
        ({"world_size": 4, "num_hosts": 2, "fabrics": ("mlx5_0",)}, "lanes", "over TCP"),
        (
            {"world_size": 4, "num_hosts": 2, "on_mpi": True, "names_interface": False},
            "horovod",
            "TF_LIBRA_INTERFACE",
        ),
        ({"world_size": 4, "num_hosts": 2, "on_mpi": True}, "lanes", "over TCP"),
        (
            {"world_size": 1000, "num_hosts": 125, "num_lanes": 4, "most_descriptors": 1024},
            "horovod",
            "between 1000 ranks need .* may have 1,024 ",
        ),
    ],
)
def test_engine_and_reason(found: dict[str, Any], engine: str, why: str) -> None:
    chosen, reason = choose(Circumstances(**found))
    assert chosen == engine
    assert re.search(why, reason), reason
    assert "\n" not in reason


@given(
    st.builds(
        Circumstances,
        world_size=st.integers(2, 4096),
        num_hosts=st.integers(1, 64),
        num_gpus=st.integers(0, 8),
        has_nccl=st.booleans(),
        on_mpi=st.booleans(),
        names_interface=st.booleans(),
        fabrics=st.sampled_from([(), ("mlx5_0",)]),
        num_lanes=st.integers(1, 64),
        most_descriptors=st.integers(64, 1 << 20),
    )
)
def test_a_choice_is_known_and_more_descriptors_never_take_lanes_away(found: Circumstances) -> None:
    chosen, reason = choose(found)
    assert chosen in backend.BY_NAME and reason
    more = dataclasses.replace(found, most_descriptors=2 * found.most_descriptors)
    assert chosen == "horovod" or choose(more)[0] == "lanes"
