"""The engine of a process that has none, and of one that is alone."""

import threading

import pytest

from tests.backends.alone import HOSTS, alone
from tf_libra.backends import engine as engine_lib


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
        assert engine_lib.running() == engine_lib.Engine(0, 1, 2, ranks_per_host=1)
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
    reported: list[str] = []

    def fail() -> None:
        try:
            engine_lib.interface_address("no-such-interface")
        except engine_lib.EngineError as error:
            reported.append(str(error))

    thread = threading.Thread(target=fail)
    thread.start()
    with pytest.raises(engine_lib.EngineError, match="no engine is running"):
        engine_lib.Engine(0, 1, 1).set_step(1)
    thread.join()
    assert "no-such-interface" in reported[0]


def test_address_of_an_interface() -> None:
    assert engine_lib.interface_address("lo") == "127.0.0.1"
    with pytest.raises(engine_lib.EngineError, match="no-such-interface"):
        engine_lib.interface_address("no-such-interface")


@pytest.mark.parametrize("host", ["", "localhost.invalid", "999.1.1.1", "192.0.2.1"])
def test_listening_on_what_is_no_address_of_this_host_fails(host: str) -> None:
    with pytest.raises(engine_lib.EngineError):
        engine_lib.listen(host)
