"""The engine of a process that has none, and of one that is alone."""

import secrets
import threading

import pytest

from tf_libra.backends import engine as engine_lib
from tf_libra.backends import horovod

HOSTS = ["127.0.0.1", engine_lib.UNIX]


def alone(num_lanes: int = 2, host: str = HOSTS[0]) -> engine_lib.Engine:
    address = engine_lib.listen(host)
    secret = secrets.token_bytes(engine_lib.SECRET_BYTES)
    return engine_lib.connect(0, [address], secret, num_lanes, 10.0, 5.0)


def test_no_engine_runs_before_one_is_connected() -> None:
    assert engine_lib.running() is None
    for call in (
        lambda: engine_lib.Engine(0, 1, 1).all_gather({}),
        lambda: engine_lib.Engine(0, 1, 1).drain_telemetry(),
        lambda: engine_lib.Engine(0, 1, 1).set_step(1),
    ):
        with pytest.raises(engine_lib.EngineError, match="no engine is running"):
            call()


def test_connect_needs_a_listener() -> None:
    address = engine_lib.Address("127.0.0.1", 1)
    with pytest.raises(engine_lib.EngineError, match="Listen"):
        engine_lib.connect(0, [address], bytes(engine_lib.SECRET_BYTES), 1, 1.0, 1.0)


@pytest.mark.parametrize("host", HOSTS)
def test_engine_of_one_process(host: str) -> None:
    engine = alone(host=host)
    try:
        assert engine_lib.running() == engine_lib.Engine(0, 1, 2)
        message = {"text": "\u00fc", "none": None, "numbers": [1, 2.5, -(2**40)]}
        assert engine.all_gather(message) == [message]
        assert engine.broadcast(message) == message
        assert engine.broadcast_bytes(b"\0\xff" * 1000) == b"\0\xff" * 1000
        assert engine.broadcast_bytes(b"") == b""
        assert engine.drain_telemetry() == ()
    finally:
        engine.close()
    assert engine_lib.running() is None
    engine.close()


def test_engine_that_was_aborted_says_why() -> None:
    engine = alone()
    try:
        engine.abort("the data set is empty")
        engine.abort("another reason")
        with pytest.raises(engine_lib.EngineError, match="the data set is empty"):
            engine.all_gather({})
    finally:
        engine.close()


def test_one_engine_at_a_time() -> None:
    engine = alone()
    try:
        with pytest.raises(engine_lib.EngineError, match="close it first"):
            alone()
        assert engine.all_gather(1) == [1]
    finally:
        engine.close()


def test_errors_of_one_thread_are_not_those_of_another() -> None:
    said: list[str] = []

    def fail() -> None:
        try:
            engine_lib.interface_address("no-such-interface")
        except engine_lib.EngineError as error:
            said.append(str(error))

    thread = threading.Thread(target=fail)
    thread.start()
    with pytest.raises(engine_lib.EngineError, match="no engine is running"):
        engine_lib.Engine(0, 1, 1).set_step(1)
    thread.join()
    assert "no-such-interface" in said[0]


def test_address_of_an_interface() -> None:
    assert engine_lib.interface_address("lo") == "127.0.0.1"
    with pytest.raises(engine_lib.EngineError, match="no-such-interface"):
        engine_lib.interface_address("no-such-interface")


@pytest.mark.parametrize("host", ["", "localhost.invalid", "999.1.1.1", "192.0.2.1"])
def test_listening_on_what_is_no_address_of_this_host_fails(host: str) -> None:
    with pytest.raises(engine_lib.EngineError):
        engine_lib.listen(host)


# Where to listen.

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
