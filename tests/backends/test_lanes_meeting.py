"""How lanes meet, as far as one process can tell."""

from typing import Any

import pytest

from tests.backends.alone import alone
from tf_libra.backends import engine as engine_lib
from tf_libra.backends import lanes_meeting
from tf_libra.backends.control import Terms
from tf_libra.backends.job import World

ONE_HOST = World(rank=0, size=4, local_size=4)
TWO_HOSTS = World(rank=0, size=4, local_size=2)


@pytest.fixture(autouse=True)
def no_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_LIBRA_INTERFACE", raising=False)
    monkeypatch.delenv("HOROVOD_GLOO_IFACE", raising=False)


def test_one_host_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lanes_meeting.listening_host(ONE_HOST) == engine_lib.UNIX
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "no-such-interface")
    assert lanes_meeting.listening_host(ONE_HOST) == engine_lib.UNIX
    monkeypatch.setenv("TF_LIBRA_INTERFACE", "lo")
    assert lanes_meeting.listening_host(ONE_HOST) == "127.0.0.1"


def test_several_hosts_need_an_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="TF_LIBRA_INTERFACE nor HOROVOD_GLOO_IFACE"):
        lanes_meeting.listening_host(TWO_HOSTS)
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "lo,eth7")
    assert lanes_meeting.listening_host(TWO_HOSTS) == "127.0.0.1"
    monkeypatch.setenv("TF_LIBRA_INTERFACE", "no-such-interface")
    with pytest.raises(engine_lib.EngineError, match="no-such-interface"):
        lanes_meeting.listening_host(TWO_HOSTS)


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
    assert lanes_meeting.listening_ports() == ports


@pytest.mark.parametrize("text", ["0", "70000", "9-8", "-5", "a-b", "1-2-3", "1.5"])
def test_ports_that_are_none_are_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TF_LIBRA_PORTS", text)
    with pytest.raises(ValueError, match=f"TF_LIBRA_PORTS must be a port, .* got '{text}'"):
        lanes_meeting.listening_ports()


def test_rank_listens_where_it_may() -> None:
    taken = engine_lib.listen("127.0.0.1").port
    with pytest.raises(engine_lib.EngineError, match=f"no port from {taken} to {taken} is free"):
        # The listener that waits in this process keeps its port until the next is there.
        engine_lib.listen("127.0.0.1", (taken, taken))
    last = min(taken + 50, 65535)
    address = engine_lib.listen("127.0.0.1", (last - 50, last))
    assert last - 50 <= address.port <= last
    assert engine_lib.listen(engine_lib.UNIX, (1, 1)).port == 0


def test_lanes_grow_to_what_is_asked_for() -> None:
    engine = alone(num_lanes=1)
    try:
        grown = lanes_meeting.grow(World(rank=0, size=1, local_size=1), engine, 3)
        assert grown.num_lanes == 3
        assert engine_lib.running() == grown
        assert grown.all_gather("still there") == ["still there"]
    finally:
        engine.close()


@pytest.mark.parametrize("hosts", [["unix:a", "10.0.0.1"], ["10.0.0.1", "10.0.0.2", "unix:b"]])
def test_interface_on_some_ranks_only_is_refused_by_name(hosts: list[str]) -> None:
    offers: list[dict[str, Any]] = [
        {"host": host, "port": 1, "secret": "", "num_lanes": 1} for host in hosts
    ]
    named, unnamed = (next(i for i, h in enumerate(hosts) if ("unix" in h) == on) for on in (0, 1))
    for rank in range(len(hosts)):
        world = World(rank=rank, size=len(hosts), local_size=len(hosts))
        with pytest.raises(ValueError, match="TF_LIBRA_INTERFACE is set on rank") as refused:
            lanes_meeting.connect(world, Terms(1, 1.0, 1.0), offers)
        assert f"on rank {named}, " in str(refused.value)
        assert f"not on rank {unnamed}, " in str(refused.value)
