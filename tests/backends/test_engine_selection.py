"""The choice of engine="auto": Horovod does what lanes cannot do, or not without a copy."""

import dataclasses
import json
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.backends import backend
from tf_libra.backends.engine_selection import EngineEnvironment, choose, connections


def ranks(size: int, hosts: int = 1, **found: Any) -> list[EngineEnvironment]:
    """All find the same, on hosts of as many each."""
    per_host = size // hosts
    facts = EngineEnvironment(local_size=per_host, **found)
    return [dataclasses.replace(facts, machine=f"m{rank // per_host}") for rank in range(size)]


def but(which: int, found: list[EngineEnvironment], **changes: Any) -> list[EngineEnvironment]:
    """One rank finds something else."""
    found[which] = dataclasses.replace(found[which], **changes)
    return found


FABRIC = {"on_mpi": True, "fabrics": ("mlx5_0",)}


@pytest.mark.parametrize(
    ("found", "engine", "why"),
    [
        (ranks(2), "lanes", "CPUs of one host"),
        (ranks(16, 8), "lanes", "CPUs of 8 hosts, over TCP$"),
        (ranks(2, num_gpus=1, has_nccl=True), "horovod", "NCCL"),
        (ranks(2, num_gpus=1), "lanes", "without NCCL, and both"),
        (ranks(2, has_nccl=True), "lanes", "CPUs"),
        (ranks(2, on_mpi=True, names_interface=False), "lanes", "one host"),
        (ranks(4, 2, **FABRIC), "horovod", "which can use mlx5_0"),
        (ranks(4, 2, fabrics=("mlx5_0",)), "lanes", "over TCP"),
        (ranks(4, 2, on_mpi=True, names_interface=False), "horovod", "TF_LIBRA_INTERFACE.$"),
        (ranks(4, 2, on_mpi=True), "lanes", "over TCP"),
        (
            ranks(1000, 125, num_lanes=4, most_descriptors=1024),
            "horovod",
            "between 1000 ranks need .* rank 0 may have 1,024 ",
        ),
        # What one rank alone finds.
        (but(1, ranks(2, num_gpus=1, has_nccl=True), num_gpus=0), "lanes", "rank 1 has no GPU"),
        (but(1, ranks(2, num_gpus=1, has_nccl=True), has_nccl=False), "lanes", "NCCL on rank 1"),
        (
            but(3, ranks(4, 2, **FABRIC), fabrics=()),
            "lanes",
            "over TCP; the host of rank 3 has no fabric for MPI",
        ),
        (
            but(2, ranks(4, 2, on_mpi=True), names_interface=False),
            "horovod",
            "no interface .* on rank 2$",
        ),
        (but(1, ranks(4), most_descriptors=64), "horovod", "rank 1 may have 64 "),
        (
            but(1, ranks(4, num_gpus=1, has_nccl=True), only_lanes="threads must be 1, got 4"),
            "lanes",
            r"horovod cannot \(on rank 1: threads must be 1, got 4\)",
        ),
        (but(1, ranks(4), only_lanes="threads must be 1, got 4"), "lanes", "CPUs of one host"),
    ],
)
def test_engine_and_reason(found: list[EngineEnvironment], engine: str, why: str) -> None:
    chosen, reason = choose(found)
    assert chosen == engine
    assert re.search(why, reason), reason
    assert "\n" not in reason


def test_a_grid_of_ranks_is_within_reach_of_lanes() -> None:
    """Each exchanges with its host's ranks and those of its place, not with all 511."""
    assert choose(ranks(512, 64, num_lanes=8, most_descriptors=4096))[0] == "lanes"
    # If hosts differ there is no grid, and the same if the hosts are unknown.
    uneven = ranks(512, 64, num_lanes=8, most_descriptors=4096)
    assert choose(but(7, uneven, machine="another"))[0] == "horovod"
    unknown = ranks(512, 64, num_lanes=8, most_descriptors=4096)
    assert choose(but(7, unknown, machine=""))[0] == "horovod"
    # So it is with hosts of one rank: a square, but for a prime number.
    assert choose(ranks(256, 256, num_lanes=8, most_descriptors=2048))[0] == "lanes"
    assert choose(ranks(257, 257, num_lanes=8, most_descriptors=2048))[0] == "horovod"


@given(
    st.lists(
        st.builds(
            EngineEnvironment,
            local_size=st.integers(1, 8),
            machine=st.sampled_from(["", "a", "b", "c"]),
            num_gpus=st.integers(0, 8),
            has_nccl=st.booleans(),
            on_mpi=st.booleans(),
            interface=st.sampled_from(["", "eth0"]),
            names_interface=st.booleans(),
            fabrics=st.sampled_from([(), ("mlx5_0",)]),
            num_lanes=st.integers(1, 64),
            most_descriptors=st.integers(64, 1 << 20),
            only_lanes=st.sampled_from(["", "threads"]),
        ),
        min_size=2,
        max_size=8,
    )
)
def test_a_choice_is_known_and_more_descriptors_never_take_lanes_away(
    found: list[EngineEnvironment],
) -> None:
    chosen, reason = choose(found)
    assert chosen in backend.BY_NAME and reason
    assert chosen == "lanes" or not any(facts.only_lanes for facts in found)
    more = [
        dataclasses.replace(facts, most_descriptors=2 * facts.most_descriptors) for facts in found
    ]
    assert chosen == "horovod" or choose(more)[0] == "lanes"


# A process that may have few descriptors says how many a mesh would take before it connects.
_MESHES = """
import json, resource, sys
from tf_libra.backends import engine
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
for rank, lanes, addresses in json.loads(sys.argv[1]):
    engine.listen("127.0.0.1")
    try:
        given = [engine.Address(*address) for address in addresses]
        engine.connect(rank, given, b"s" * engine.SECRET_BYTES, lanes, 1.0, 1.0)
    except engine.EngineError as error:
        print(error)
"""
_LOOPBACK = "127.0.0.1"


def test_connections_are_counted_as_the_mesh_makes_them() -> None:
    found, requested = [], []
    for size, hosts, lanes, changes in (
        (512, 64, 8, {}),
        (60, 60, 4, {}),  # a rank on each, as a square
        (61, 61, 4, {}),  # of a prime number of hosts
        (63, 7, 1, {}),
        (64, 1, 4, {}),
        (64, 1, 4, {"interface": "lo"}),
        (64, 8, 2, {"machine": ""}),
    ):
        of_ranks = [
            dataclasses.replace(facts, **changes) for facts in ranks(size, hosts, num_lanes=lanes)
        ]
        # As lanes_meeting.offer says it.
        host = "unix:x" if hosts == 1 and not changes else _LOOPBACK
        addresses = [
            (
                host,
                1,
                "unix:x" if of_rank.local_size > 1 else "",
                of_rank.machine if hosts > 1 else "",
            )
            for of_rank in of_ranks
        ]
        for rank in (0, size - 1):
            found.append(connections(of_ranks)[rank])
            requested.append((rank, lanes, addresses))
    command = [sys.executable, "-c", _MESHES, json.dumps(requested)]
    reported = subprocess.run(command, capture_output=True, text=True)
    needed = [
        int(number) for number in re.findall(r"needs (\d+) file descriptors", reported.stdout)
    ]
    assert len(needed) == len(found), reported.stdout + reported.stderr
    # A leaf of the tree has fewer neighbours than what is counted.
    assert all(0 <= ours - theirs < 9 for ours, theirs in zip(found, needed, strict=True))
