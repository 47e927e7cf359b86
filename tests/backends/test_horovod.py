"""What is needed of Horovod, as far as one process can tell."""

from collections.abc import Iterator

import pytest
from horovod.common import elastic
from horovod.common.exceptions import HorovodInternalError

from tests.backends.alone import alone
from tf_libra.backends import engine as engine_lib
from tf_libra.backends import horovod

ONE_HOST = horovod.World(rank=0, size=4, local_size=4)
TWO_HOSTS = horovod.World(rank=0, size=4, local_size=2)


@pytest.fixture(autouse=True)
def no_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_LIBRA_INTERFACE", raising=False)
    monkeypatch.delenv("HOROVOD_GLOO_IFACE", raising=False)


def test_one_host_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert horovod.listening_host(ONE_HOST) == engine_lib.UNIX
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "no-such-interface")
    assert horovod.listening_host(ONE_HOST) == engine_lib.UNIX
    monkeypatch.setenv("TF_LIBRA_INTERFACE", "lo")
    assert horovod.listening_host(ONE_HOST) == "127.0.0.1"


def test_several_hosts_need_an_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="TF_LIBRA_INTERFACE nor HOROVOD_GLOO_IFACE"):
        horovod.listening_host(TWO_HOSTS)
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "lo,eth7")
    assert horovod.listening_host(TWO_HOSTS) == "127.0.0.1"
    monkeypatch.setenv("TF_LIBRA_INTERFACE", "no-such-interface")
    with pytest.raises(engine_lib.EngineError, match="no-such-interface"):
        horovod.listening_host(TWO_HOSTS)


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
    assert horovod.listening_ports() == ports


@pytest.mark.parametrize("text", ["0", "70000", "9-8", "-5", "a-b", "1-2-3", "1.5"])
def test_ports_that_are_none_are_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TF_LIBRA_PORTS", text)
    with pytest.raises(ValueError, match=f"TF_LIBRA_PORTS must be a port, .* got '{text}'"):
        horovod.listening_ports()


def test_rank_listens_where_it_may() -> None:
    taken = engine_lib.listen("127.0.0.1").port
    with pytest.raises(engine_lib.EngineError, match=f"no port from {taken} to {taken} is free"):
        # The listener that waits in this process keeps its port until the next is there.
        engine_lib.listen("127.0.0.1", (taken, taken))
    last = min(taken + 50, 65535)
    address = engine_lib.listen("127.0.0.1", (last - 50, last))
    assert last - 50 <= address.port <= last
    assert engine_lib.listen(engine_lib.UNIX, (1, 1)).port == 0


def test_job_is_known_once_horovod_is_initialized() -> None:
    with pytest.raises(ValueError, match=r"call hvd\.init\(\)"):
        horovod.world()


def test_lost_rank_is_what_horovod_recovers_from() -> None:
    error = horovod.internal_error("rank 1 is gone")
    assert isinstance(error, HorovodInternalError)
    assert str(error) == "rank 1 is gone"


def test_lanes_grow_to_what_is_asked_for() -> None:
    engine = alone(num_lanes=1)
    try:
        grown = horovod.grow_engine(horovod.World(rank=0, size=1, local_size=1), engine, 3)
        assert grown.num_lanes == 3
        assert engine_lib.running() == grown
        assert grown.all_gather("still there") == ["still there"]
    finally:
        engine.close()


@pytest.fixture
def state() -> Iterator[elastic.ObjectState]:
    """A state that `hvd.elastic.run` would keep informed."""
    one = elastic.ObjectState(bcast_object=lambda value: value, get_rank=lambda: 0, epoch=0)
    elastic.notification_manager.register_listener(one)
    yield one
    elastic.notification_manager.remove_listener(one)


class Listener:
    def __init__(self) -> None:
        self.told = 0

    def reset(self) -> None:
        self.told += 1


def test_reset_of_an_elastic_job_is_told_once(state: elastic.ObjectState) -> None:
    listener = Listener()
    for _ in range(2):  # as every job after a reset does
        horovod.call_on_reset(listener.reset)
    state.on_reset()
    assert listener.told == 1
    state.on_reset()
    assert listener.told == 2


def test_job_is_elastic_while_a_state_is_kept_informed(state: elastic.ObjectState) -> None:
    assert horovod.is_elastic()
    elastic.notification_manager.remove_listener(state)
    assert not horovod.is_elastic()
    horovod.call_on_reset(lambda: None)  # nobody to tell it
    elastic.notification_manager.register_listener(state)
