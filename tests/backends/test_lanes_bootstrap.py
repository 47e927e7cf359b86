"""The bootstrap of lanes, as far as one process can test it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.backends.alone import alone
from tf_libra.backends import engine as engine_lib
from tf_libra.backends import lanes_bootstrap
from tf_libra.coordination.control_plane import ControlConfig
from tf_libra.coordination.world import World, host_identity

ONE_HOST = World(rank=0, size=4, local_size=4)
TWO_HOSTS = World(rank=0, size=4, local_size=2)


@pytest.fixture(autouse=True)
def no_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_LIBRA_INTERFACE", raising=False)
    monkeypatch.delenv("HOROVOD_GLOO_IFACE", raising=False)


@pytest.fixture
def no_listener_is_left() -> Iterator[None]:
    """An engine takes the one that waits in this process, where the next test expects none."""
    yield
    alone().close()


def test_one_host_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lanes_bootstrap.listening_host(ONE_HOST) == engine_lib.UNIX
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "no-such-interface")
    assert lanes_bootstrap.listening_host(ONE_HOST) == engine_lib.UNIX
    monkeypatch.setenv("TF_LIBRA_INTERFACE", "lo")
    assert lanes_bootstrap.listening_host(ONE_HOST) == "127.0.0.1"


def test_several_hosts_need_an_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="TF_LIBRA_INTERFACE nor HOROVOD_GLOO_IFACE"):
        lanes_bootstrap.listening_host(TWO_HOSTS)
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "lo,eth7")
    assert lanes_bootstrap.listening_host(TWO_HOSTS) == "127.0.0.1"
    monkeypatch.setenv("TF_LIBRA_INTERFACE", "no-such-interface")
    with pytest.raises(engine_lib.EngineError, match="no-such-interface"):
        lanes_bootstrap.listening_host(TWO_HOSTS)


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("", None),
        ("20000", (20000, 20000)),
        ("20000-20063", (20000, 20063)),
        ("1-65535", (1, 65535)),
    ],
)
def test_ports_are_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, ports: tuple[int, int] | None
) -> None:
    monkeypatch.setenv("TF_LIBRA_PORTS", text)
    assert lanes_bootstrap.listening_ports() == ports


@pytest.mark.parametrize("text", ["0", "70000", "9-8", "-5", "a-b", "1-2-3", "1.5"])
def test_ports_that_are_none_are_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TF_LIBRA_PORTS", text)
    with pytest.raises(ValueError, match=f"TF_LIBRA_PORTS must be a port, .* got '{text}'"):
        lanes_bootstrap.listening_ports()


def test_rank_listens_where_it_may(no_listener_is_left: None) -> None:
    taken = engine_lib.listen("127.0.0.1").port
    with pytest.raises(engine_lib.EngineError, match=f"{taken} to {taken}"):
        # The listener that waits in this process keeps its port until the next is there.
        engine_lib.listen("127.0.0.1", (taken, taken))
    last = min(taken + 50, 65535)
    address = engine_lib.listen("127.0.0.1", (last - 50, last))
    assert last - 50 <= address.port <= last
    assert engine_lib.listen(engine_lib.UNIX, (1, 1)).port == 0


def test_lanes_grow_to_the_requested_number() -> None:
    engine = alone(num_lanes=1)
    try:
        grown = lanes_bootstrap.grow(World(rank=0, size=1, local_size=1), engine, 3)
        assert grown.num_lanes == 3
        assert engine_lib.running() == grown
        assert grown.all_gather("still there") == ["still there"]
    finally:
        engine.close()


def test_first_machine_identity_stays_if_it_is_unreadable_when_lanes_are_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_LIBRA_INTERFACE", "lo")
    world = World(rank=0, size=1, local_size=0)  # on several hosts, as far as this rank can tell
    terms = ControlConfig(1, 10.0, 5.0)
    engine = lanes_bootstrap.connect(world, terms, [lanes_bootstrap.offer(world, terms.num_lanes)])
    try:
        assert engine.machine == host_identity() != ""
        monkeypatch.setattr(lanes_bootstrap, "host_identity", lambda: "")
        assert lanes_bootstrap.grow(world, engine, 2).num_lanes == 2
        assert engine.all_gather("still there") == ["still there"]
    finally:
        engine.close()


# As `offer` has them: the place, TF_LIBRA_INTERFACE, what is listened on by it or without, where.
NAMED, OTHER = ("a", "lo", "lo", "127.0.0.1"), ("a", "", "eth0", "10.0.0.1")
ON_UNIX, ELSEWHERE = ("a", "", "", "unix:x"), ("b", "", "eth0", "10.0.0.2")
UNKNOWN_NAMED, UNKNOWN_UNIX = ("", "lo", "lo", "127.0.0.1"), ("", "", "", "unix:x")
UNKNOWN, SAME = ("", "", "eth0", "10.0.0.2"), ("a", "eth0", "eth0", "10.0.0.1")


def connect(ranks: list[tuple[str, str, str, str]]) -> None:
    """Connects ranks by the addresses that they offer; no rank really listens."""
    offers: list[dict[str, Any]] = [
        dict(zip(("identity", "named", "interface", "host"), rank, strict=True))
        | {"port": 1, "local": "", "machine": "", "secret": "", "num_lanes": 1}
        for rank in ranks
    ]
    world = World(rank=0, size=len(ranks), local_size=len(ranks))
    lanes_bootstrap.connect(world, ControlConfig(1, 1.0, 1.0), offers)


@pytest.mark.parametrize(
    ("ranks", "named", "unnamed", "where"),
    [
        ([ON_UNIX, NAMED], 1, 0, "on a Unix socket"),
        ([NAMED, NAMED, ON_UNIX], 0, 2, "on a Unix socket"),
        # Of several hosts no rank listens on Unix sockets alone.
        ([ELSEWHERE, NAMED, OTHER], 1, 2, "at 10.0.0.1"),
        ([OTHER, SAME, NAMED], 2, 0, "at 10.0.0.1"),
        ([UNKNOWN_UNIX, UNKNOWN_NAMED], 1, 0, "on a Unix socket"),
    ],
)
def test_interface_on_some_ranks_only_is_rejected_by_name(
    ranks: list[tuple[str, str, str, str]], named: int, unnamed: int, where: str
) -> None:
    with pytest.raises(ValueError, match="TF_LIBRA_INTERFACE") as refused:
        connect(ranks)
    assert f"on rank {named}, which listens on lo at 127.0.0.1" in str(refused.value)
    assert f"not on rank {unnamed} of the same host, which listens {where}:" in str(refused.value)


@pytest.mark.parametrize(
    "ranks",
    [
        [ON_UNIX, ON_UNIX],
        [NAMED, NAMED, ELSEWHERE],  # all of one host
        [OTHER, SAME],  # by two ways to the same
        [SAME, NAMED],  # a host of two
        [UNKNOWN_NAMED, UNKNOWN],  # two hosts, for all that is known
    ],
)
def test_reachable_interfaces_are_not_rejected(ranks: list[tuple[str, str, str, str]]) -> None:
    connect_to: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_lib, "connect", lambda rank, *args: connect_to.append(rank))
        connect(ranks)
    assert connect_to == [0]


def test_a_rank_says_what_it_listens_on(
    monkeypatch: pytest.MonkeyPatch, no_listener_is_left: None
) -> None:
    def interfaces(world: World) -> tuple[str, str]:
        mine = lanes_bootstrap.offer(world, 1)
        assert mine["identity"] == host_identity()
        return mine["named"], mine["interface"]

    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "lo,eth7")
    assert interfaces(ONE_HOST) == ("", "")
    assert interfaces(TWO_HOSTS) == ("", "lo")
    monkeypatch.setenv("TF_LIBRA_INTERFACE", "lo")
    assert interfaces(ONE_HOST) == interfaces(TWO_HOSTS) == ("lo", "lo")


def test_zero_blocks_are_omitted_or_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_LIBRA_ZERO_BLOCKS", raising=False)
    assert lanes_bootstrap.omits_zeros()
    monkeypatch.setenv("TF_LIBRA_ZERO_BLOCKS", "send")
    assert not lanes_bootstrap.omits_zeros()
    monkeypatch.setenv("TF_LIBRA_ZERO_BLOCKS", "yes")
    with pytest.raises(ValueError, match="TF_LIBRA_ZERO_BLOCKS must be 'omit' or 'send'"):
        lanes_bootstrap.offer(ONE_HOST, 1)
